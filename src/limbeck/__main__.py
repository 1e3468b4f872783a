"""``python -m limbeck``, and what the command ``limbeck`` starts: an interruption while modules load is answered, too."""

import sys


def main() -> int:
    """Run the command line; the return value is the process's exit code."""
    try:
        from limbeck.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("limbeck: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
