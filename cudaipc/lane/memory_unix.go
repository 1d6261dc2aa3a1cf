//go:build unix

package lane

import "golang.org/x/sys/unix"

// newMemory makes private memory, which other processes cannot map.
func newMemory(sizeBytes int) ([]byte, error) {
	return unix.Mmap(-1, 0, sizeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
}

func freeMemory(mem []byte) error { return unix.Munmap(mem) }

func closeDescriptor(fd int) { _ = unix.Close(fd) }
