package bench

import (
	"errors"
	"fmt"
	"net"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A handleCarrier has a store at each end, with the other end as its reader.
// Payloads lie in the sender's store, and their handles travel in the lanes.
// Answers that only acknowledge travel in frames, as in a bus.
type handleCarrier struct {
	*laneCarrier
	conn   *net.UnixConn
	store  *shmstore.Store
	peer   shmstore.ReaderSet
	id     shmstore.ReaderID
	reader *shmstore.Reader

	frame [messages.HandleSize]byte
	// offered says that payloads are in the store already.
	offered bool
	read    func([]byte) error
	sum     uint64 // of what was read without looking
}

// attach makes the two stores known to each other. The parent admits first.
func (c *handleCarrier) attach(parent bool) (err error) {
	steps := []func() error{
		func() error { c.id, err = c.store.Admit(c.conn); return err },
		func() error { c.reader, err = shmstore.Attach(c.conn); return err },
	}
	if !parent {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	c.peer = shmstore.Readers(c.id)
	return nil
}

// newHandleCarrier makes the store of one end, for payloads of a size. The
// carrier owns the connection.
func newHandleCarrier(l *laneCarrier, conn *net.UnixConn, spec peerSpec, sizeBytes int) (*handleCarrier, error) {
	c := &handleCarrier{laneCarrier: l, conn: conn, read: touchAll, offered: spec.Carrier != byHandle}
	switch spec.Carrier {
	case byOffer:
		c.read = c.readEnds
	case byPages:
		c.read = c.readPages
	default: // all of it
	}
	arena := spec.Pattern.arenaBytes(sizeBytes)
	var err error
	c.store, err = shmstore.Create(shmstore.Options{
		ArenaBytes:     arena,
		MaxObjectBytes: max(int64(sizeBytes), arena/4),
		Slots:          storeSlots(arena),
		Memory:         shmstore.Shared,
		Reuse:          true, // as a bus's
	})
	if err == nil && c.offered {
		err = c.fill(sizeBytes)
	}
	return c, err
}

// storeSlots is how many payloads a store has at once: as many as handles fit
// into a lane, if there is room.
func storeSlots(arena int64) int { return max(laneCapacity/messages.HandleSize, int(arena/mib)) }

// fill writes the payloads that are offered later, wherever there is room for one.
func (c *handleCarrier) fill(sizeBytes int) error {
	payload := touched(int64(sizeBytes))
	var all []shmstore.Reservation
	for {
		r, err := c.store.Reserve(sizeBytes, codec.IDRaw, 0)
		if err != nil {
			for i := range all {
				all[i].Abort()
			}
			if errors.Is(err, shmstore.ErrFull) {
				return nil
			}
			return err
		}
		copy(r.Bytes(), payload)
		all = append(all, r)
	}
}

func (c *handleCarrier) send(payload []byte) error {
	if len(payload) <= acknowledgement {
		return c.laneCarrier.send(payload)
	}
	r, err := c.store.Reserve(len(payload), codec.IDRaw, c.peer)
	if err != nil {
		return err
	}
	if !c.offered {
		codec.Copy(r.Bytes(), payload)
	}
	h, err := r.Commit(len(payload), 0)
	if err != nil {
		return err
	}
	frame, err := h.AppendBinary(c.frame[:0])
	if err != nil {
		return err
	}
	return c.sendFrame(frameHandle, frame)
}

func (c *handleCarrier) receive(sizeBytes int) error {
	if sizeBytes <= acknowledgement {
		return c.laneCarrier.receive(sizeBytes)
	}
	frame, kind, err := c.next()
	if err != nil {
		return err
	}
	var h messages.Handle
	if err := h.UnmarshalBinary(frame); err != nil || kind != frameHandle {
		return fmt.Errorf("a frame of kind %d without a handle: %w", kind, err)
	}
	c.receiver.Advance()
	l, err := c.reader.Take(h)
	if err != nil {
		return err
	}
	err = c.read(l.Bytes())
	l.Release()
	return err
}

// readEnds reads the first and the last line.
func (c *handleCarrier) readEnds(payload []byte) error {
	const word = 8
	c.sum += touch(payload[:cacheLine], word) + touch(payload[len(payload)-cacheLine:], word)
	return nil
}

// readPages reads a byte of every page.
func (c *handleCarrier) readPages(payload []byte) error {
	const page = 4096
	c.sum += touch(payload, page)
	return nil
}

func (c *handleCarrier) close() error {
	var errs []error
	if c.reader != nil {
		errs = append(errs, c.reader.Close())
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	errs = append(errs, c.conn.Close(), c.laneCarrier.close())
	return errors.Join(errs...)
}
