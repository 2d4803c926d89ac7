"""`python -m workers.cli`: the same as the command `fleetmend`."""

from workers.cli.main import main

if __name__ == "__main__":
    main()
