"""Messages of the node protocol, to bytes and back.

A message is a named tuple; `encode` makes bytes of it, `decode` reads one
packet. Bytes from outside never raise anything but `ProtocolError`. Nothing
here touches a socket or a descriptor, and the functions share no state.

`limits` has the numbers, `messages` the messages and what they carry, `fields` what their fields may hold, and
`packet` how they are framed.
"""

from .fields import Attrs as Attrs
from .fields import check_labels as check_labels
from .fields import cut_utf8 as cut_utf8
from .limits import *
from .messages import *
from .packet import Message as Message
from .packet import decode as decode
from .packet import encode as encode
from .packet import kind_of as kind_of
