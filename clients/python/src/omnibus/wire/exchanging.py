"""The messages by which clients find what others have put: the exchange, and the directory of descriptors."""

from typing import NamedTuple

from .fields import U32, U64, Data, Name, Payload, Pool, U8_3x, U32_4x, check_inline
from .packet import message

# The exchange.


@message(80)
class Place(NamedTuple):
    token: U32
    owner: U32_4x
    put: U32
    flags: U8_3x
    segment: U32
    offset: U64
    size: U64
    from_: Name
    to: Name
    key: Name
    payload: Data

    def check(self) -> None:
        check_inline(self.flags, self.size, self.payload)


@message(81)
class Placed(NamedTuple):
    token: U32_4x
    entry: U64  #: the payload's number, which is never another's


@message(82)
class Fetch(NamedTuple):
    token: U32
    flags: U8_3x
    entry: U64  #: 0: any
    from_: Name
    to: Name
    key: Name


@message(83)
class Fetched(NamedTuple):
    token: U32
    delivery: U32
    flags: U8_3x
    segment: U32
    offset: U64
    size: U64
    payload: Payload

    def check(self) -> None:
        check_inline(self.flags, self.size, self.payload)


@message(84)
class Cancel(NamedTuple):
    token: U32


@message(85)
class Cleanup(NamedTuple):
    token: U32
    owner: U32
    key: Name = ""


@message(86)
class Cleaned(NamedTuple):
    token: U32
    count_: U32


# The directory.


@message(88, fds=(1, 1))
class Publish(NamedTuple):
    token: U32
    number: U32
    pool: Pool
    size: U64


@message(89)
class Published(NamedTuple):
    token: U32


@message(90)
class Withdraw(NamedTuple):
    number: U32
    pool: Pool


@message(91)
class Find(NamedTuple):
    token: U32
    number: U32
    pool: Pool


@message(92, fds=(2, 2))
class Found(NamedTuple):
    token: U32
    owner: U32  #: who published it: the same number for the same process
    pid: U32_4x
    size: U64
