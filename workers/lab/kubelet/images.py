"""Which images the lab can run: releases of fleetmend, each the folder of a checkout.

Owns the reading of an image's name and where a release lies on this machine: the tag `lab` is the
checkout that runs the lab, any other tag a folder of the lab's own `images`. Starts nothing;
`launcher` asks for a container's release, and timers play every image that is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = "fleetmend"
CHECKOUT_TAG: Final = "lab"
FLEETMEND_IMAGE: Final = f"{REPOSITORY}:{CHECKOUT_TAG}"
DEFAULT_TAG: Final = "latest"
"""Of an image that names none, as container runtimes read it."""


class ImageMissing(Exception):
    """The lab has no such release; the message says where it would have to be."""


def release_of(image: str) -> str | None:
    """The tag, if it is an image of fleetmend, from whatever registry; else None."""
    name = image.partition("@")[0].rpartition("/")[2]
    repository, _, tag = name.partition(":")
    return (tag or DEFAULT_TAG) if repository == REPOSITORY else None


@dataclass(frozen=True)
class Releases:
    """The releases of one lab."""

    folder: Path

    def find(self, tag: str) -> Path | None:
        """Where the release's packages are; None = the checkout that runs the lab.

        Raises:
            ImageMissing: there is no such release.
        """
        if tag == CHECKOUT_TAG:
            return None
        place = self.folder / tag
        if not (place / "workers").is_dir():
            raise ImageMissing(
                f"{REPOSITORY}:{tag} is no release of this lab: {place} is no checkout of "
                f"fleetmend; make it one, or a link to one, or use {FLEETMEND_IMAGE}"
            )
        return place.resolve()
