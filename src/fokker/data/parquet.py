r"""Parquet files of strangers: what they would take is known before anything is decoded.

A column lies in pages. The header of each says how many bytes the page has, and how many it has
once it is decompressed; a dictionary page may stand for any number of rows. So a few hundred bytes
can ask for gigabytes. `sizes` reads the headers alone and refuses pages beyond a bound. How many
numbers or images a file may hold grows with its length, with `room`.
"""

__all__ = ["Sizes", "room", "sizes"]

from collections.abc import Iterable
from io import BufferedReader
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

PAGE = 2**28  # bytes of a page, decompressed
PAGES = 2**20  # of a file
HEADER = 2**20  # bytes of the header of a page, which holds statistics
DEEPEST = 16  # structures within each other
FREE = 2**28  # bytes that a file of any length may ask for
SHARE = 512  # bytes that it may ask for, for each of its own


class Sizes(NamedTuple):
    r"""What the pages of a file say."""

    largest: int  # bytes of a page, decompressed
    length: int  # of the file


def room(length: int) -> int:
    r"""Returns the bytes of content that a file of a length may stand for."""
    return FREE + SHARE * length


class Header:
    r"""Reads the header of a page: a structure in the compact protocol of Thrift.

    Arguments:
        data: The bytes from the beginning of the page on.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("the header of a page does not end")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number in the header of a page does not end")

    def integer(self) -> int:
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def fields(self, depth: int = 0) -> dict[int, int]:
        r"""Returns the integers of a structure by the number of the field, and passes over the
        rest."""
        found, number = {}, 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            if head & 15 in {4, 5, 6}:
                found[number] = self.integer()
            else:
                self.skip(head & 15, depth + 1)
        return found

    def skip(self, kind: int, depth: int, inside: bool = False) -> None:
        r"""Passes over a value of a kind; a truth value is a byte inside a list alone."""
        if depth > DEEPEST:
            raise ValueError("the header of a page is nested too deeply")
        match kind:
            case 1 | 2:
                self.at += inside
            case 3:
                self.at += 1
            case 4 | 5 | 6:
                self.varint()
            case 7:
                self.at += 8
            case 8:
                length = self.varint()  # first: it moves on itself
                self.at += length
            case 9 | 10:
                head = self.byte()
                for _ in range(head >> 4 if head >> 4 < 15 else self.varint()):
                    self.skip(head & 15, depth + 1, True)
                    if self.at > len(self.data):
                        break
            case 12:
                self.fields(depth)
            case _:
                raise ValueError(f"a field of kind {kind} is in the header of a page")


def sizes(file: BufferedReader, parquet: "ParquetFile", columns: Iterable[int]) -> Sizes:
    r"""Returns what the pages of columns say; raises if one of them is beyond the bounds.

    Arguments:
        file: The file.
        parquet: The same, opened.
        columns: The numbers of the columns that are read.
    """
    length, largest, pages = file.seek(0, 2), 0, 0
    metadata, columns = parquet.metadata, list(columns)
    for i in range(metadata.num_row_groups):
        for j in columns:
            chunk = metadata.row_group(i).column(j)
            if not chunk.num_values:  # no page is read
                continue
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
                begin = chunk.dictionary_page_offset
            at, end = begin, begin + chunk.total_compressed_size
            if not 0 <= begin <= end <= length:
                raise ValueError(f"a column lies in bytes {begin} to {end} of {length}")
            while at < end:
                file.seek(at)
                header = Header(file.read(min(HEADER, end - at)))
                fields = header.fields()
                whole, packed = fields.get(2, -1), fields.get(3, -1)
                if not (0 <= packed <= end - at and 0 <= whole <= PAGE):
                    raise ValueError(
                        f"a page of {packed} bytes, {whole} decompressed, is beyond its column or"
                        f" {PAGE} bytes"
                    )
                at += header.at + packed
                largest, pages = max(largest, whole), pages + 1
                if pages > PAGES:
                    raise ValueError(f"there are more than {PAGES} pages")
    file.seek(0)
    return Sizes(largest, length)
