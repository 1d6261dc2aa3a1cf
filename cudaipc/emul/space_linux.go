package emul

import (
	"slices"

	"golang.org/x/sys/unix"
)

// reserveBytes is the size of one reservation of address space, which costs nothing but addresses.
const reserveBytes = 1 << 30

// span is a range of addresses.
type span struct{ base, bytes uintptr }

func (s span) end() uintptr { return s.base + s.bytes }

// contains reports whether all of o lies in s. o does not wrap around.
func (s span) contains(o span) bool { return s.base <= o.base && o.end() <= s.end() }

func (s span) overlaps(o span) bool { return s.base < o.end() && o.base < s.end() }

// space allocates addresses for device memory. They are reserved, so that no other mapping takes
// the addresses of freed memory: an operation that is too late finds no memory there.
type space struct {
	reserved []span
	free     []span // by address, none next to another
}

// reserve returns addresses for a multiple of the page size, aligned to align.
func (s *space) reserve(bytes, align uintptr) (uintptr, error) {
	for i, f := range s.free {
		if base := alignUp(f.base, align); base >= f.base && base < f.end() && bytes <= f.end()-base {
			s.cut(i, span{base, bytes})
			return base, nil
		}
	}
	grow := max(reserveBytes, alignUp(bytes+align, reserveBytes))
	base, err := mapAt(0, grow, -1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, err
	}
	s.reserved = append(s.reserved, span{base, grow})
	s.release(span{base, grow})
	return s.reserve(bytes, align)
}

// cut removes a part from a free span.
func (s *space) cut(i int, part span) {
	f := s.free[i]
	var rest []span
	if f.base < part.base {
		rest = append(rest, span{f.base, part.base - f.base})
	}
	if part.end() < f.end() {
		rest = append(rest, span{part.end(), f.end() - part.end()})
	}
	s.free = slices.Replace(s.free, i, i+1, rest...)
}

// release frees addresses without memory.
func (s *space) release(part span) {
	i, _ := slices.BinarySearchFunc(s.free, part.base, func(f span, base uintptr) int {
		if f.base < base {
			return -1
		}
		return 1
	})
	s.free = slices.Insert(s.free, i, part)
	if i+1 < len(s.free) && s.free[i].end() == s.free[i+1].base {
		s.free[i].bytes += s.free[i+1].bytes
		s.free = slices.Delete(s.free, i+1, i+2)
	}
	if i > 0 && s.free[i-1].end() == s.free[i].base {
		s.free[i-1].bytes += s.free[i].bytes
		s.free = slices.Delete(s.free, i, i+1)
	}
}

// overlaps reports whether any of the addresses are reserved.
func (s *space) overlaps(part span) bool {
	return slices.ContainsFunc(s.reserved, part.overlaps)
}

// close unmaps all reserved addresses, with the memory there.
func (s *space) close() {
	for _, r := range s.reserved {
		unmap(r)
	}
	s.reserved, s.free = nil, nil
}

func alignUp(n, align uintptr) uintptr { return (n + align - 1) / align * align }
