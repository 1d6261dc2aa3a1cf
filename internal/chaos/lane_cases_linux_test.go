package chaos

import (
	"errors"
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// badLanes are the bad peers of a lane, by name. meet runs when the peer is
// introduced, do runs when all streams are direct, and said is a part of the
// error of the request. A case that is tolerated ends with a hang-up, and said is
// then the error of the hang-up.
var badLanes = map[string]struct {
	meet  func(l *laneEnd, m *wire.Introduce, fds []int) error
	do    func(l *laneEnd) error
	said  string
	sides []string // empty: as a stage, and as a caller
}{
	// Frames.
	"garbage": {
		do:   func(l *laneEnd) error { return l.rawFrame(rawMessage(wire.KindDeliver, []byte("garbage"))) },
		said: "deliver.",
	},
	"unknown kind": {
		do:   func(l *laneEnd) error { return l.rawFrame(rawMessage(999, []byte("garbage"))) },
		said: "kind 999: no message has this kind",
	},
	"no message": {
		do:   func(l *laneEnd) error { return l.rawFrame([]byte("garbage, garbage")) },
		said: "protocol",
	},
	"message that is longer than its frame": {
		do: func(l *laneEnd) error {
			b := encode(&wire.Finish{})
			return l.rawFrame(b[:len(b)-1])
		},
		said: "protocol",
	},
	"not for a peer": {
		do:   func(l *laneEnd) error { return l.frame(&wire.Direct{}) },
		said: "direct from a peer",
	},
	"segment in the lane": {
		do:   func(l *laneEnd) error { return l.rawFrame(encode(&wire.Segment{Segment: 1, Bytes: 1}, 0)) },
		said: "the packet has 0 left",
	},
	"empty message": {
		do:   func(l *laneEnd) error { return l.rawFrame(rawMessage(wire.KindFinish, nil)) },
		said: "finish.delivery: cut short",
	},
	"frame after a packet that never comes": {
		do: func(l *laneEnd) error {
			return errors.Join(l.frameAfter(7, encode(&wire.Finish{Delivery: l.held})), l.sendSocket(&wire.Forget{Segment: 77}))
		},
		said: "a packet comes after frame",
	},
	"packet after frames that are not there": {
		do:   func(l *laneEnd) error { return l.sendSocket(&wire.After{Frames: 1 << 30}) },
		said: "a packet comes after frame",
	},
	"packet after frames that were told of": {
		do: func(l *laneEnd) error {
			return errors.Join(l.frame(&wire.Forget{Segment: 77}), l.sendSocket(&wire.Forget{Segment: 77}), l.sendSocket(&wire.After{Frames: 1}))
		},
		said: "and one before it after frame",
	},

	// Deliveries.
	"source that never was": {
		do: func(l *laneEnd) error {
			m := l.next()
			m.Source = 1 << 30
			return errors.Join(l.frame(m), l.finished(), l.hangUp())
		},
		said: "closed the connection",
	},
	"deliveries for sources of others": {
		do: func(l *laneEnd) error {
			return l.toOthers(func(source uint32) wire.Message {
				m := l.next()
				m.Source = source
				return m
			})
		},
		said: "not expected from there",
	},
	"end of streams of others": {
		do: func(l *laneEnd) error {
			return l.toOthers(func(source uint32) wire.Message { return &wire.Streamed{Source: source, Deliveries: 1 << 20} })
		},
		said: "which does not come from there",
	},
	"edge that is none": {
		do:   func(l *laneEnd) error { m := l.next(); m.Edge = 7; return l.frame(m) },
		said: "edge 7 of 1",
	},
	"more than the window": {
		do: func(l *laneEnd) error {
			l.next() // is never sent
			for range laneWindow + 1 {
				if err := l.frame(l.next()); err != nil {
					return err
				}
			}
			return nil
		},
		said: "more than its window",
	},
	"sequence that came": {
		do: func(l *laneEnd) error {
			m := l.next()
			return errors.Join(l.frame(m), l.frame(m))
		},
		said: "came again",
	},
	"sequence that waits": {
		do: func(l *laneEnd) error {
			l.next()
			m := l.next()
			return errors.Join(l.frame(m), l.frame(m))
		},
		said: "came again",
	},
	"sequence that comes through the host as well": {
		do: func(l *laneEnd) error {
			// The host goes on counting where the lane began.
			return errors.Join(l.frame(l.next()), l.finished(), l.emit())
		},
		said: "came again",
	},
	"size that lies": {
		do: func(l *laneEnd) error {
			const sizeAt = wire.HeaderSize + 48
			b := encode(l.next())
			b[sizeAt]++
			return l.rawFrame(b)
		},
		said: "the size says",
	},
	"payload beyond its segment": {
		do:   func(l *laneEnd) error { return l.payloadAt(1<<12, 1) },
		said: "1 bytes at 4096 of a segment of 4096",
	},
	"payload of more than there is": {
		do:   func(l *laneEnd) error { return l.payloadAt(math.MaxUint64-7, 16) },
		said: "of a segment of 4096",
	},
	"payload of as much as a number can say": {
		do:   func(l *laneEnd) error { return l.payloadAt(16, math.MaxUint64) },
		said: "of a segment of 4096",
	},
	"payload in a segment that never comes": {
		do: func(l *laneEnd) error {
			m := l.next()
			m.Flags, m.Segment, m.Payload = 0, 77, nil
			return errors.Join(l.frame(m), l.hangUp())
		},
		said: "lies in segment 77, which is not known",
	},

	// Answers.
	"forged finish": {
		do:   func(l *laneEnd) error { return l.frame(&wire.Finish{Delivery: 1 << 30}) },
		said: "delivery 1073741824 is not the peer's to finish", sides: allSides,
	},
	"finish twice": {
		do: func(l *laneEnd) error {
			m := &wire.Finish{Delivery: l.held}
			return errors.Join(l.frame(m), l.frame(m))
		},
		said: "is not the peer's to finish", sides: allSides,
	},
	"finish of a kept delivery": {
		do: func(l *laneEnd) error {
			m := &wire.Finish{Delivery: l.held, Flags: wire.FinishKeep}
			return errors.Join(l.frame(m), l.frame(m))
		},
		said: "is not the peer's to finish", sides: allSides,
	},
	"release of an unfinished delivery": {
		do:   func(l *laneEnd) error { return l.frame(&wire.Release{Delivery: l.held}) },
		said: "was not kept, or was released before", sides: allSides,
	},
	"release twice": {
		do: func(l *laneEnd) error {
			m := &wire.Release{Delivery: l.held}
			return errors.Join(l.frame(&wire.Finish{Delivery: l.held, Flags: wire.FinishKeep}), l.frame(m), l.frame(m))
		},
		said: "was not kept, or was released before", sides: allSides,
	},

	// The socket pair.
	"segment without seals": {
		do:   func(l *laneEnd) error { return l.segment(1<<12, 1<<12, 0) },
		said: "seal", sides: allSides,
	},
	"segment that is cut short": {
		do:   func(l *laneEnd) error { return l.segment(1<<12, 1<<16, allSeals) },
		said: "4096 bytes instead of 65536", sides: allSides,
	},
	"segment of no size": {
		do:   func(l *laneEnd) error { return l.segment(1<<12, 0, allSeals) },
		said: "segment", sides: allSides,
	},
	"segment that came before": {
		do: func(l *laneEnd) error {
			return errors.Join(l.segment(1<<12, 1<<12, allSeals), l.segment(1<<12, 1<<12, allSeals))
		},
		said: "segment 1 came before",
	},
	"segment without a descriptor": {
		do:   func(l *laneEnd) error { return l.bytes(rawMessage(wire.KindSegment, make([]byte, 12))) },
		said: "descriptor",
	},
	"garbage on the socket": {
		do:   func(l *laneEnd) error { return l.bytes([]byte("garbage, garbage")) },
		said: "protocol",
	},
	"finish by the lane and by the socket": {
		do: func(l *laneEnd) error {
			m := &wire.Finish{Delivery: l.held}
			return errors.Join(l.frame(m), l.sendSocket(m))
		},
		said: "is not the peer's to finish",
	},
	"meets twice": {
		do:   func(l *laneEnd) error { return l.sendSocket(&wire.Lane{Capacity: laneBytes}, l.own.FD()) },
		said: "the memory of its lane once",
	},
	"forgets a segment that it never had": {
		do:   func(l *laneEnd) error { return errors.Join(l.sendSocket(&wire.Forget{Segment: 77}), l.hangUp()) },
		said: "closed the connection",
	},
	"hangs up and lives on": {do: (*laneEnd).hangUp, said: "closed the connection", sides: allSides},

	// The lanes.
	"frames that are too large": {
		do: func(l *laneEnd) error {
			return l.headers(func(uint64) uint64 { return laneHeader(lane.Kind(wire.KindFinish), 1<<20) })
		},
		said: "rules of the lane: frame", sides: allSides,
	},
	"skips that lead nowhere": {
		do: func(l *laneEnd) error {
			return l.headers(func(uint64) uint64 { return laneHeader(lane.MaxKind+1, 0) })
		},
		said: "rules of the lane: skip", sides: []string{asSink},
	},
	"skips to skips": {
		do: func(l *laneEnd) error {
			toTheEnd := func(at uint64) uint64 { return laneHeader(lane.MaxKind+1, laneBytes-at-8) }
			return errors.Join(l.frame(l.next()), l.finished(), l.headers(toTheEnd))
		},
		said: "rules of the lane: frame",
	},
	"headers that are taken back": {
		do: func(l *laneEnd) error {
			none := func(uint64) uint64 { return 0 }
			return errors.Join(l.frame(l.next()), l.finished(), l.headers(none), l.hangUp())
		},
		said: "closed the connection",
	},
	"head that is far ahead": {
		do:   func(l *laneEnd) error { return l.badHead(1 << 40) },
		said: "head",
	},

	// The meeting.
	"meets with another capacity": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return l.badHandshake(2*laneBytes, fds, laneHalf, allSeals)
		},
		said: "a lane of 131072 bytes",
	},
	"meets with another layout": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return l.badHandshake(laneBytes, fds, laneHalf, allSeals)
		},
		said: "is not of lane",
	},
	"meets without seals": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return l.badHandshake(laneBytes, fds, laneHalf, 0)
		},
		said: "seal",
	},
	"meets with too little": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return l.badHandshake(laneBytes, fds, laneHalf-4096, allSeals)
		},
		said: "bytes instead of",
	},
	"meets with a word": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return errors.Join(l.openSocket(fds), l.sendSocket(&wire.Forget{}))
		},
		said: "forget instead of lane",
	},
	"hangs up instead of meeting": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error {
			return errors.Join(l.openSocket(fds), l.hangUp())
		},
		said: "closed the connection",
	},
	"does not meet": {
		meet: func(l *laneEnd, _ *wire.Introduce, fds []int) error { return l.openSocket(fds) },
		said: completed,
	},

	// The end of a stream.
	"stream of fewer than came, to the peer": {
		do: func(l *laneEnd) error {
			return l.frame(&wire.Streamed{Source: l.direct.PeerSource, Edge: l.direct.PeerEdge})
		},
		said: "is said to have ended with 0 deliveries",
	},
	"stream of two lengths, to the peer": {
		do: func(l *laneEnd) error {
			m := &wire.Streamed{Source: l.direct.PeerSource, Edge: l.direct.PeerEdge, Deliveries: 1 << 20}
			again := *m
			again.Deliveries++
			return errors.Join(l.frame(m), l.frame(&again))
		},
		said: "is said to have ended with 1048577 deliveries",
	},
	"stream of fewer than came, to the host": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Streamed{Source: l.source}) },
		said: "is said to have ended with 0 deliveries",
	},
	"stream of fewer than the peer has": {
		do: func(l *laneEnd) error {
			for range 3 {
				if err := errors.Join(l.frame(l.next()), l.finished()); err != nil {
					return err
				}
			}
			return l.sendHost(&wire.Streamed{Source: l.source, Deliveries: l.relayed + 1})
		},
		said: "deliveries",
	},
	"stream of two lengths, to peer and host": {
		do: func(l *laneEnd) error {
			// The peer has the first before the second: it finishes the delivery between them.
			return errors.Join(
				l.frame(&wire.Streamed{Source: l.direct.PeerSource, Edge: l.direct.PeerEdge, Deliveries: 1 << 20}),
				l.frame(l.next()), l.finished(),
				l.sendHost(&wire.Streamed{Source: l.source, Deliveries: 1<<20 + 1}),
			)
		},
		said: "is said to have ended with 1048577 deliveries",
	},
	"stream on an edge that is none": {
		do:   func(l *laneEnd) error { return l.frame(&wire.Streamed{Source: l.direct.PeerSource, Edge: 7}) },
		said: "edge 7 of 1",
	},

	// Messages that are not for the host, or not at this time.
	"stream on an edge that is none, to the host": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Streamed{Source: l.source, Edge: 7}) },
		said: "edge 7 of 1",
	},
	"stream of a source that never was, to the host": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Streamed{Source: 1 << 30}) },
		said: "no source 1073741824",
	},
	"expects deliveries without an announcement": {
		do: func(l *laneEnd) error {
			return errors.Join(l.sendHost(&wire.Expecting{Source: l.source, Edge: 7}), l.sendHost(&wire.Expecting{Source: l.source}), l.hangUp())
		},
		said: "closed the connection",
	},
	"expects for a source that never was": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Expecting{Source: 1 << 30}) },
		said: "no source 1073741824",
	},
	"reports nonsense": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Reported{Piece: []byte("garbage")}) },
		said: "a report: ", // the host may have asked for one
	},
	"directs the host": {
		do:   func(l *laneEnd) error { return l.sendHost(&wire.Direct{Source: l.source}) },
		said: "direct is not for the host",
	},
}

var allSides = []string{asStage, asSink, asCaller}

// Offset of the head, and size, of the segment of a peer.
const (
	laneHead = 4096 + laneBytes + 64
	laneHalf = 4096 + laneBytes + 4096
)

func laneHeader(kind lane.Kind, length uint64) uint64 { return uint64(kind)<<32 | 1<<31 | length }

func (l *laneEnd) hangUp() error { return l.socket.Close() }

// toOthers sends a message for each source but the one of its own stream.
func (l *laneEnd) toOthers(message func(source uint32) wire.Message) error {
	const all = 32 // more than there are tasks, and requests
	for n := uint32(1); n < all; n++ {
		for _, source := range []uint32{n, wire.OwnSource | n} {
			if source == l.direct.PeerSource {
				continue
			}
			if err := l.frame(message(source)); err != nil {
				return fmt.Errorf("source %d: %w", source, err)
			}
		}
	}
	return nil
}

// segment offers a segment whose size is said bytes in the message, possibly without seals.
func (l *laneEnd) segment(size, said int64, seals int) error {
	fd, err := memfd(size, seals)
	if err != nil {
		return err
	}
	return l.sendSocket(&wire.Segment{Segment: 1, Bytes: uint64(said)}, fd)
}

// payloadAt sends a delivery whose payload lies outside its segment of 4096 bytes.
func (l *laneEnd) payloadAt(offset, size uint64) error {
	m := l.next()
	m.Flags, m.Segment, m.Offset, m.Size, m.Payload = 0, 1, offset, size, nil
	return errors.Join(l.segment(1<<12, 1<<12, allSeals), l.frame(m))
}

// badHead publishes a head beyond the frames that were sent. The peer reads the head when
// it finds no space in the lane.
func (l *laneEnd) badHead(head uint64) error {
	l.head.Store(head)
	l.inline = make([]byte, 400) // large frames: the honest node reads the head only when the lane is full
	err := l.frame(&wire.Finish{Delivery: l.held})
	if l.side == asCaller {
		err = errors.Join(err, l.frame(l.next()))
	}
	return err
}

// badHandshake sends the message lane with a segment that breaks the rules.
func (l *laneEnd) badHandshake(capacity uint32, fds []int, size int64, seals int) error {
	fd, err := memfd(size, seals)
	return errors.Join(err, l.openSocket(fds), l.sendSocket(&wire.Lane{Capacity: capacity}, fd))
}
