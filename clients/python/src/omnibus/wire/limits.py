"""Constants of the node protocol: its version, the bounds of messages, and flags."""

VERSION = 2
MAGIC = 0x53554249_4E4D4F01

MAX_PACKET_BYTES = 65_536
MAX_DESCRIPTORS = 8
MAX_QUESTIONS = 1_024
MAX_NAME_BYTES = 200
MAX_TEXT_BYTES = 4_096
MAX_INLINE_BYTES = 32_768
MAX_PIECE_BYTES = 60_000
MAX_ATTRS = 32
MAX_ATTR_NAME_BYTES = 64
MAX_ATTR_VALUE_BYTES = 512
MAX_TRACE_STATE_BYTES = 512

HEADER_BYTES = 8
SKIPPABLE = 1  # in byte 7 of a header: a receiver that does not know the kind skips the message
ALL_EDGES = 0xFFFF

# Flags of deliveries and emissions.
LAST = 1
BARE = 2
INLINE = 4
MORE_PARTS = 8
FORWARD = 16
OWN_SEGMENT = 32

KEEP_PAYLOAD, UNREAD, HANDLED = 1, 2, 4  # of finish
WAIT = 1  # of fetch
SPENT_BYTES = 1  # of spent
FAIL_FAST, TELL = 1, 2  # of submit
ENDS_UNASKED = 1  # of serve
OWN_SOURCE = 1 << 31  # the bit in the numbers of a client's requests
MORE_PIECES = 1  # of reply
