"""Encoding and decoding of the node protocol's messages.

A message is a named tuple; `encode` returns its bytes, `decode` reads one
packet. For bytes from outside the only error is `ProtocolError`. Nothing
here touches a socket or a descriptor, and the functions share no state.

`limits` has the constants, `messages` the messages, `fields` the encoding of variable-length fields, and `packet` the
framing.
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
