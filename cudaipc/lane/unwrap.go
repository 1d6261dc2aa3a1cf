package lane

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// unwrapping collects the copies of a message's tensors.
type unwrapping struct {
	ops    []cudaipc.Op
	staged []hostCopy
}

// hostCopy is a copy of host memory that the GPU cannot read in place.
type hostCopy struct {
	dst  cudaipc.Ptr
	data []byte
}

// tensor allocates memory for a tensor, and adds the copies that fill it.
func (u *unwrapping) tensor(m *Message, dev *device, i int, uuid cudaipc.UUID, alloc func(sizeBytes int64) (cudaipc.Ptr, error)) (*Tensor, error) {
	t := &m.bundle.Tensors[i]
	to := &Tensor{DType: t.DType, Shape: t.Shape, Device: uuid}
	n := to.Bytes()
	if n == 0 {
		return to, nil
	}
	var err error
	if to.Ptr, err = alloc(n); err != nil {
		return nil, fmt.Errorf("memory for %v: %w", to, err)
	}
	if from := m.tensors[i]; from != nil {
		u.ops, err = pack(u.ops, to.Ptr, from.Ptr, int64(to.DType.Size()), from.Shape, from.strides())
		return to, err
	}
	if from, ok := m.readable(dev, t.Data); ok {
		u.ops = append(u.ops, cudaipc.Op{Kind: cudaipc.OpCopy, Dst: to.Ptr, Src: from, Bytes: n})
	} else {
		u.staged = append(u.staged, hostCopy{to.Ptr, t.Data})
	}
	return to, nil
}

// readable returns the device address of a part of the payload, if the device can read it in place.
func (m *Message) readable(dev *device, data []byte) (cudaipc.Ptr, bool) {
	h, offset := m.lane.maps.find(data)
	if h == nil || !h.isReadInPlace(m.size) {
		return 0, false
	}
	host := h.registeredOn(dev)
	if host == nil {
		return 0, false
	}
	return host.Ptr(offset), true
}

// copyStaged copies host memory through a staging buffer.
func (m *Message) copyStaged(dev *device, s cudaipc.Stream, copies []hostCopy) error {
	if len(copies) == 0 {
		return nil
	}
	st := m.lane.takeStaging(dev)
	if st == nil {
		return m.copyPageable(s, copies)
	}
	defer dev.giveStaging(st)
	for _, c := range copies {
		if err := st.copy(s, c.dst, c.data); err != nil {
			return err
		}
		m.lane.count(func(s *Stats) { s.StagedBytes += int64(len(c.data)) })
	}
	return nil
}

// copyPageable leaves copies of pageable memory to the driver.
func (m *Message) copyPageable(s cudaipc.Stream, copies []hostCopy) error {
	if err := m.addReader(s); err != nil {
		return err
	}
	for _, c := range copies {
		if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: c.dst, Src: cudaipc.HostPtr(c.data), Bytes: int64(len(c.data))}); err != nil {
			return err
		}
		m.lane.count(func(s *Stats) { s.PageableBytes += int64(len(c.data)) })
	}
	return nil
}
