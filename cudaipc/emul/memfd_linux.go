package emul

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Prefixes of the names of descriptors. The kernel shows them to every process with the descriptor,
// and they cannot be changed.
const (
	memfdPrefix   = "/memfd:"
	memfdSuffix   = " (deleted)"
	arenaName     = "omnibus-emul-arena-"
	handleName    = "omnibus-emul-handle-"
	sizeSeals     = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	mapShared     = unix.PROT_READ | unix.PROT_WRITE
	noExecUnknown = unix.EINVAL // of kernels before 6.3
)

var pageBytes = os.Getpagesize()

// newMemfd makes memory of a fixed size.
func newMemfd(name string, bytes int64) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, noExecUnknown) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("create a memfd: %w", err)
	}
	err = unix.Ftruncate(fd, bytes)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("size a memfd of %d bytes: %w", bytes, err)
	}
	return fd, nil
}

// memfdOf returns the name and the size of a descriptor; the name is "" for one that is not sealed
// memory.
func memfdOf(fd int) (name string, bytes int64) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return "", 0
	}
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&sizeSeals != sizeSeals {
		return "", 0
	}
	return nameOf("self", fd), st.Size
}

// nameOf returns the name of a memfd of a process, or "".
func nameOf(process string, fd int) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/%s/fd/%d", process, fd))
	if err != nil {
		return ""
	}
	name, isMemfd := strings.CutPrefix(link, memfdPrefix)
	if !isMemfd {
		return ""
	}
	return strings.TrimSuffix(name, memfdSuffix)
}

// mapOver maps a descriptor at reserved addresses.
func mapOver(s span, fd int) error {
	_, err := mapAt(s.base, s.bytes, fd, mapShared, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return err
}

// unmapInPlace turns a mapping into reserved addresses.
func unmapInPlace(s span) error {
	_, err := mapAt(s.base, s.bytes, -1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

// isMapped reports whether all of the addresses are mapped in this process, for writing if writable
// is set. A trial access would write.
func isMapped(s span, writable bool) bool {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return false
	}
	defer func() { _ = maps.Close() }()
	at := s.base
	for lines := bufio.NewScanner(maps); at < s.end() && lines.Scan(); {
		var from, to uintptr
		var may string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %4s", &from, &to, &may); err != nil {
			return false
		}
		if from <= at && at < to && may[0] == 'r' && (may[1] == 'w' || !writable) {
			at = to
		}
	}
	return at >= s.end()
}

// handleMagic begins every handle; the last byte is the version.
var handleMagic = [8]byte{'o', 'm', 'n', 'i', 'e', 'm', 'u', 1}

// nonce names an allocation, and is never reused.
type nonce [16]byte

// handleInfo is the contents of a handle: the allocation, and its descriptor in the process that
// made it.
type handleInfo struct {
	pid, fd   uint32
	bytes     int64
	nonce     nonce
	device    cudaipc.UUID
	namespace uint64 // PID namespace of pid
}

func (h handleInfo) encode() (b cudaipc.Handle) {
	copy(b[0:], handleMagic[:])
	binary.LittleEndian.PutUint32(b[8:], h.pid)
	binary.LittleEndian.PutUint32(b[12:], h.fd)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.bytes))
	copy(b[24:], h.nonce[:])
	copy(b[40:], h.device[:])
	binary.LittleEndian.PutUint64(b[56:], h.namespace)
	return b
}

// decodeHandle validates all fields: ok is false for bytes that encode cannot have made.
func decodeHandle(b cudaipc.Handle) (h handleInfo, ok bool) {
	h.pid = binary.LittleEndian.Uint32(b[8:])
	h.fd = binary.LittleEndian.Uint32(b[12:])
	h.bytes = int64(binary.LittleEndian.Uint64(b[16:]))
	h.nonce = nonce(b[24:40])
	h.device = cudaipc.UUID(b[40:56])
	h.namespace = binary.LittleEndian.Uint64(b[56:])
	const maxInt32 = 1<<31 - 1
	ok = [8]byte(b[:8]) == handleMagic && h.bytes > 0 && h.bytes%int64(pageBytes) == 0 &&
		h.pid > 0 && h.pid <= maxInt32 && h.fd <= maxInt32
	return h, ok
}

func (h handleInfo) name() string { return handleName + hex.EncodeToString(h.nonce[:]) }

// open opens the memory of another process's handle, or returns a reason for people. The check of
// the name before the open avoids opening a file that has the number by now, and the check after it
// makes sure.
func (h handleInfo) open() (fd int, reason string) {
	if h.namespace != pidNamespace() {
		return -1, "of a process in another container"
	}
	process := fmt.Sprint(h.pid)
	if nameOf(process, int(h.fd)) != h.name() {
		return -1, "its process has died or has freed the memory, or may not be inspected"
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%s/fd/%d", process, h.fd), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err.Error()
	}
	if name, bytes := memfdOf(fd); name != h.name() || bytes != h.bytes {
		unix.Close(fd)
		return -1, "it does not fit the memory behind it"
	}
	return fd, ""
}

// pidNamespace returns the number of this process's PID namespace, or 0.
func pidNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
}
