package lane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// An arena with a handle in place of a descriptor ([pool.HandleArena]) is published as a segment
// with this layout:
//
//	offset  size  field
//	     0     8  "omnihdl" and the version, 1
//	     8     8  size of the arena
//	    16     8  offset of the arena in the allocation of the handle
//	    24     8  zero
//	    32    64  the handle
//
// So handles come from their owner, as descriptors do, and not from payloads.
const (
	handledBytes    = 96
	handledSizeAt   = 8
	handledOffsetAt = 16
	handledHandleAt = 32
)

var handledMagic = [8]byte{'o', 'm', 'n', 'i', 'h', 'd', 'l', 1}

// publishHandled publishes an arena by its handle.
func publishHandled(ctx context.Context, dir Directory, name Name, a *pool.HandleArena) error {
	seg, err := shmstore.NewSegment("gpu arena", handledBytes)
	if err != nil {
		return err
	}
	defer seg.Close()
	h, offset := a.Handle()
	b := seg.Bytes()
	copy(b, handledMagic[:])
	binary.LittleEndian.PutUint64(b[handledSizeAt:], uint64(a.Bytes()))
	binary.LittleEndian.PutUint64(b[handledOffsetAt:], uint64(offset))
	copy(b[handledHandleAt:], h[:])
	return dir.Publish(ctx, name, seg.FD(), seg.Size())
}

// importHandled maps an arena by its published handle. It closes the found descriptor.
func importHandled(dev cudaipc.Device, found Found) (cudaipc.Arena, error) {
	seg, err := shmstore.OpenSegment("gpu arena", found.FD, found.SizeBytes)
	if err != nil {
		return nil, err
	}
	defer seg.Close()
	b := seg.Bytes()
	if len(b) != handledBytes || [8]byte(b[:8]) != handledMagic {
		return nil, fmt.Errorf("%w: the published segment is no handle of an arena", ErrForged)
	}
	a := &importedHandle{
		dev: dev, bytes: int64(binary.LittleEndian.Uint64(b[handledSizeAt:])), //nolint:gosec // negative ones are refused
	}
	offset := int64(binary.LittleEndian.Uint64(b[handledOffsetAt:])) //nolint:gosec // as above
	h := cudaipc.Handle(b[handledHandleAt:handledBytes])
	base, sizeBytes, err := dev.Import(h)
	if own, ownBytes, ok := findLent(h, dev.Caps().Device); ok && errors.Is(err, cudaipc.ErrOwnHandle) { // of another lane of this process
		base, sizeBytes, err, a.own = own, ownBytes, nil, true
	}
	if err != nil {
		return nil, err
	}
	a.base, a.opened = base+cudaipc.Ptr(offset), base
	if a.bytes < 0 || offset < 0 || offset > sizeBytes || a.bytes > sizeBytes-offset {
		return nil, errors.Join(fmt.Errorf("%w: an arena of %d bytes at %d of %d", ErrForged, a.bytes, offset, sizeBytes), a.Close())
	}
	return a, nil
}

// importedHandle is an arena that was mapped by its handle.
type importedHandle struct {
	dev    cudaipc.Device
	base   cudaipc.Ptr
	opened cudaipc.Ptr // the base of the handle's allocation
	bytes  int64
	own    bool // it belongs to this process, and nothing was opened
}

func (a *importedHandle) Base() cudaipc.Ptr { return a.base }
func (a *importedHandle) Bytes() int64      { return a.bytes }
func (a *importedHandle) FD() int           { return -1 }

func (a *importedHandle) Close() error {
	if a.own {
		return nil
	}
	return a.dev.Unimport(a.opened)
}

// importFound maps the arena with a number.
func importFound(dev cudaipc.Device, number uint32, found Found) (cudaipc.Arena, error) {
	if number&pool.HandleBit != 0 {
		return importHandled(dev, found)
	}
	defer closeDescriptor(found.FD)
	return dev.ImportArena(found.FD, found.SizeBytes)
}

// publishMemory publishes an arena, by its handle or its descriptor.
func publishMemory(ctx context.Context, dir Directory, name Name, a cudaipc.Arena) error {
	if h, ok := a.(*pool.HandleArena); ok {
		return publishHandled(ctx, dir, name, h)
	}
	return dir.Publish(ctx, name, a.FD(), a.Bytes())
}
