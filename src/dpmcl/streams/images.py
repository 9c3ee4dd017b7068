"""Your own images: a folder, a zip or a tar."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dpmcl.exceptions import SpecError
from dpmcl.images import Decoding, labelled_images
from dpmcl.labelled import Labelled
from dpmcl.settings import Positive
from dpmcl.stream_settings import LabelledSettings


@dataclass(frozen=True, kw_only=True)
class ImageFolder(LabelledSettings):
    """Your own images, in a folder, zip or tar: one folder a class.

    path: of the folder or archive; ~ is your home folder. size: (height, width) that every image is
    resized to; None where all have one size, which is kept. crop: cut that out of the centre at its
    own scale instead. channels: 1 grey, 3 RGB; None for grey where every image is.
    invert: 255 - value. levels: how many folders above a file make its class name, 1 for "cat", 2
    for "Latin/character03". Inputs (channels, height, width), uint8, in [0, 1] once in a batch.

    Decoded once into $DPMCL_CACHE. Needs Pillow (the extra `vision`).
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("path",)

    path: str = ""
    size: tuple[Positive, Positive] | None = None
    channels: Literal[1, 3] | None = None
    crop: bool = False
    invert: bool = False
    levels: Positive = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise SpecError("stream 'images' needs a path, as in stream.path = 'photos/'.")
        self._decoding()

    def read(self) -> Labelled:
        return labelled_images(Path(self.path), self._decoding())

    def _decoding(self) -> Decoding:
        return Decoding(
            size=self.size,
            channels=self.channels,
            crop=self.crop,
            invert=self.invert,
            levels=self.levels,
        )


plugin = ImageFolder
