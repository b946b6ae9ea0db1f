"""RunPod by hand: `h3render pods` as a script, which needs the extra `infra` alone and runs on Windows, too.

    python tools/runpod_api.py catalog --count 8
    python tools/runpod_api.py create --count 8 --datacenter US-XX-N --yes
    python tools/runpod_api.py get POD_ID
    python tools/runpod_api.py terminate POD_ID --yes

The key is read from RUNPOD_API_KEY. Without --yes nothing is created or terminated.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder


def main() -> None:
    try:
        from infra.cli import pods_app

        pods_app(prog_name="runpod_api.py")
    except ModuleNotFoundError as exc:
        sys.stderr.write(f"runpod_api.py needs {exc.name}: pip install 'h3render[infra]'\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
