from jobs.playlist import PlaylistSegment, render_playlist

FIRST = PlaylistSegment("segment-00000.m4s", 17 / 24)
LAST = PlaylistSegment("segment-00001.m4s", 27 / 24)


def test_a_growing_playlist_lists_what_is_there_and_stays_open():
    assert render_playlist("init.mp4", [FIRST], ended=False) == (
        "#EXTM3U\n"
        "#EXT-X-VERSION:7\n"
        "#EXT-X-TARGETDURATION:1\n"
        "#EXT-X-MEDIA-SEQUENCE:0\n"
        "#EXT-X-PLAYLIST-TYPE:EVENT\n"
        "#EXT-X-START:TIME-OFFSET=0\n"
        "#EXT-X-INDEPENDENT-SEGMENTS\n"
        '#EXT-X-MAP:URI="init.mp4"\n'
        "#EXTINF:0.708333,\n"
        "segment-00000.m4s\n"
    )


def test_an_ended_playlist_says_so_in_its_last_line():
    assert render_playlist("init.mp4", [FIRST, LAST], ended=True).splitlines()[-3:] == [
        "#EXTINF:1.125000,",
        "segment-00001.m4s",
        "#EXT-X-ENDLIST",
    ]


def test_a_playlist_only_ever_grows_at_its_end():
    growing = render_playlist("init.mp4", [FIRST], ended=False)
    assert render_playlist("init.mp4", [FIRST, FIRST], ended=True).startswith(growing)


def test_the_target_duration_is_the_longest_segment_rounded_up():
    assert "#EXT-X-TARGETDURATION:2\n" in render_playlist("init.mp4", [FIRST, LAST], ended=True)


def test_a_playlist_without_segments_is_valid():
    playlist = render_playlist("init.mp4", [], ended=False)
    assert "#EXT-X-TARGETDURATION:1\n" in playlist
    assert playlist.endswith('#EXT-X-MAP:URI="init.mp4"\n')
