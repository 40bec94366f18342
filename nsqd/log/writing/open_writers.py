"""Which logs hold a descriptor for writing: a few hundred at most, and none that is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqcommon.wakeup import Wakeup
    from nsqd.log.files import Files
    from nsqd.log.writing.segment_writer import SegmentWriter

MOST_DESCRIPTORS: Final = 256  # for writing, and as many again for reading


class OpenWriters:
    """Implements `WriterHost` for the writers of all logs. May touch only these and the wake-up of the tidying task."""

    def __init__(self, files: Files, wakeup: Wakeup) -> None:
        self.files = files
        self._wakeup = wakeup
        self._open: dict[SegmentWriter, None] = {}  # in the order in which they were opened

    def file_opened(self, writer: SegmentWriter) -> None:
        if not self._open:
            self._wakeup.set()
        self._open[writer] = None
        if len(self._open) > MOST_DESCRIPTORS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()

    def forget(self, writer: SegmentWriter) -> None:
        self._open.pop(writer, None)

    def close_idle(self) -> bool:
        """Close the files that were not written to since the last call. Return whether nothing is left open."""
        for writer in [candidate for candidate in self._open if not candidate.take_used()]:
            writer.close()
            del self._open[writer]
        return not self._open
