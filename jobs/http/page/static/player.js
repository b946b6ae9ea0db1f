// <h3-player src poster label>: plays a finished file, or an HLS stream while it is still being made.
//
// The <video> lives in a shadow root, so that morphing the page around it does not touch it. Nothing is loaded before
// somebody presses Play. Once it plays, it keeps its source, though `src` may change from the stream to the file.

const HLS_TYPE = "application/vnd.apple.mpegurl";
const STYLES = new URL("player.css", import.meta.url);

class Player extends HTMLElement {
  static observedAttributes = ["src", "poster", "label"];

  #poster = document.createElement("slot"); // what the page shows where scripts do not run
  #video = document.createElement("video");
  #button = document.createElement("button");
  #hint = document.createElement("p");
  #hls = null;
  #isStarted = false;

  constructor() {
    super();
    const styles = document.createElement("link");
    styles.rel = "stylesheet";
    styles.href = STYLES;
    this.#video.preload = "none";
    this.#video.playsInline = true;
    this.#video.hidden = true;
    this.#button.type = "button";
    this.#button.append(drawTriangle());
    this.#button.addEventListener("click", () => this.play());
    this.#hint.setAttribute("role", "status");
    const root = this.attachShadow({ mode: "open" });
    root.append(styles, this.#poster, this.#video, this.#button, this.#hint);
    for (const kind of ["waiting", "stalled", "playing", "ended", "timeupdate"]) {
      this.#video.addEventListener(kind, () => this.#tellWaiting(kind === "waiting"));
    }
    this.#video.addEventListener("error", () => this.#video.error && this.#fail(this.#video.error.message));
  }

  attributeChangedCallback(name, _, value) {
    if (name === "label") {
      this.#video.setAttribute("aria-label", value);
      this.#button.setAttribute("aria-label", `Play: ${value}`);
    } else if (name === "poster") {
      this.#video.poster = value || "";
    }
  }

  // Moved within the page (moveBefore) nothing ends. Elsewhere a move is a removal, at once followed by the other half.
  connectedMoveCallback() {}

  disconnectedCallback() {
    queueMicrotask(() => this.isConnected || this.#release());
  }

  async play() {
    if (!this.#isStarted) {
      this.#show(true);
      this.#video.focus();
      await this.#attach(this.getAttribute("src"));
    }
    await this.#video.play().catch(() => {}); // refused or taken back: the controls are there to try again
  }

  // Nothing of this is told by an attribute of the element itself: those are the page's, which takes away what it has not.
  #show(isStarted) {
    this.#isStarted = isStarted;
    this.#button.hidden = isStarted;
    this.#poster.hidden = isStarted;
    this.#video.hidden = !isStarted;
    this.#video.controls = isStarted;
  }

  async #attach(source) {
    if (!source.endsWith(".m3u8")) {
      this.#video.src = source;
      return;
    }
    const { default: Hls } = await import("./vendor/hls.light-1.7.4.min.mjs");
    if (!this.#isStarted) return; // taken out of the page meanwhile
    if (Hls.isSupported()) {
      this.#stream(new Hls(HLS_OPTIONS), source, Hls);
    } else if (this.#video.canPlayType(HLS_TYPE)) {
      this.#video.src = source;
    } else {
      this.#fail("this browser plays no streams: wait for the whole video");
    }
  }

  #stream(hls, source, { Events, ErrorTypes, ErrorDetails }) {
    this.#hls = hls;
    hls.on(Events.ERROR, (_, error) => {
      if (!error.fatal) return;
      if (error.type === ErrorTypes.MEDIA_ERROR) return hls.recoverMediaError();
      // The farm may only be away. But what was never read cannot go on, nor what is another stream than before.
      const goesOn = hls.levels.length > 0 && error.details !== ErrorDetails.LEVEL_PARSING_ERROR;
      setTimeout(() => this.#hls === hls && (goesOn ? hls.startLoad() : this.#beginAnew()), RETRY_MS);
    });
    hls.loadSource(source);
    hls.attachMedia(this.#video);
  }

  // From what the page now says: the render may have ended meanwhile.
  async #beginAnew() {
    const wasPlaying = !this.#video.paused;
    this.#hls.destroy();
    this.#hls = null;
    await this.#attach(this.getAttribute("src"));
    if (wasPlaying) await this.#video.play().catch(() => {});
  }

  #tellWaiting(isWaiting) {
    this.#hint.textContent = isWaiting && this.#hls ? "Waiting for the next clip" : "";
  }

  // A stream of ours mends itself; of all else the button is there to try again.
  #fail(reason) {
    const isOver = !this.#hls;
    const hadFocus = this.shadowRoot.activeElement === this.#video;
    if (isOver) this.#release();
    if (isOver && hadFocus) this.#button.focus();
    this.#hint.textContent = `Cannot be played: ${reason || "the video cannot be read"}`;
  }

  #release() {
    this.#hls?.destroy();
    this.#hls = null;
    this.#video.removeAttribute("src");
    this.#video.load();
    this.#show(false);
  }
}

const RETRY_MS = 2000;
const HLS_OPTIONS = {
  startPosition: 0, // else a stream that still grows begins near its end
  enableWorker: false, // fragments are fed as they are: there is nothing to convert
  lowLatencyMode: false,
  maxLiveSyncPlaybackRate: 1, // never faster to catch up
  liveDurationInfinity: false,
  backBufferLength: Infinity, // seconds: all of a clip, to go back in
};

function drawTriangle() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M8 5.1v13.8L19 12z");
  svg.append(path);
  return svg;
}

customElements.define("h3-player", Player);
