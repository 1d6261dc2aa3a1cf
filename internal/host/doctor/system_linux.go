package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// system checks the kernel and its limits.
func system(s Subject) []Check {
	return []Check{kernel(), memfd(), pidfd(), peerPIDFD(), populate(), sockets(s.Folder), watches(), files(), fileSizes(), addresses(), memory(), cgroup(), namespace()}
}

func kernel() Check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return missing("kernel", err, "the kernel does not answer uname")
	}
	return found("kernel", "%s %s %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
}

// memfd checks that memory can be shared safely: a file that cannot shrink under its readers, and that
// they cannot write.
func memfd() Check {
	const name = "sealed memory"
	fd, err := unix.MemfdCreate("omnibus-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return missing(name, fmt.Errorf("memfd_create: %w", err), "payloads are shared through it: Linux 3.17 or later, and a sandbox that allows it")
	}
	defer unix.Close(fd)
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return missing(name, fmt.Errorf("F_ADD_SEALS: %w", err), "readers could write to shared memory: Linux 5.1 or later")
	}
	return found(name, "memfd with all seals")
}

func pidfd() Check {
	const name = "watching processes"
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return missing(name, fmt.Errorf("pidfd_open: %w", err), "the host could not detect the death of a process: Linux 5.3 or later, and a sandbox that allows it")
	}
	_ = unix.Close(fd)
	return found(name, "pidfd")
}

func peerPIDFD() Check {
	const name = "identity of peers"
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return missing(name, fmt.Errorf("socketpair: %w", err), "processes talk over sockets of type SOCK_SEQPACKET")
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return note(name, "no SO_PEERPIDFD: "+err.Error(), "Linux 6.5 has it; until then a process is opened by its number, and its age is compared")
	}
	_ = unix.Close(fd)
	return found(name, "SO_PEERPIDFD")
}

func populate() Check {
	const name = "touching memory ahead"
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return missing(name, fmt.Errorf("mmap: %w", err), "there is no memory at all")
	}
	defer func() { _ = unix.Munmap(page) }()
	if err := unix.Madvise(page, unix.MADV_POPULATE_WRITE); err != nil {
		return note(name, "no MADV_POPULATE_WRITE: "+err.Error(), "Linux 5.14 has it; until then pages are touched one by one, and a start takes longer")
	}
	return found(name, "MADV_POPULATE_WRITE")
}

// sockets tries to listen in the folder of a host's socket.
func sockets(folder string) Check {
	const name = "sockets"
	source := "XDG_RUNTIME_DIR"
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		source = "XDG_RUNTIME_DIR is not set"
	}
	dir := folder
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir) // the host creates the last part
	}
	path := filepath.Join(dir, fmt.Sprintf(".doctor-%d", os.Getpid()))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		return missing(name, fmt.Errorf("a socket in %s: %w", dir, err), "set XDG_RUNTIME_DIR to a directory of yours with a short path, or name a socket in the pipeline file")
	}
	if err := os.Remove(path); err != nil {
		return note(name, err.Error(), "remove it by hand")
	}
	c := found(name, "%s (%s)", folder, source)
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		c.Verdict, c.Advice = Note, "processes started elsewhere find the host only with the same TMPDIR, or by OMNIBUS_SOCKET"
	}
	return c
}

func watches() Check {
	const name = "watching files"
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return note(name, "inotify: "+err.Error(), "a process that waits at a connector without a host polls every few milliseconds; the processes of a user share what sysctl fs.inotify.max_user_instances allows: raise it")
	}
	_ = unix.Close(fd)
	return found(name, "inotify")
}

// fewFiles is a number of descriptors that is too small for some hundred processes: each takes several,
// and each large payload takes one.
const fewFiles = 1024

func files() Check {
	const name = "open files"
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return note(name, err.Error(), "their limit is not known")
	}
	c := found(name, "at most %d, and %d if raised", r.Cur, r.Max)
	if r.Max < fewFiles { // Go raises the soft limit to the hard one
		c.Verdict, c.Advice = Note, fmt.Sprintf("fewer than %d: each process takes several; raise `ulimit -n`", fewFiles)
	}
	return c
}

const (
	// smallFiles is a file size that is too small for the larger segments of the default sizes: a store
	// is one file, and so are an arena and a large payload.
	smallFiles = 256 << 20
	// smallAddressSpace is an address space in which a host with a store of the default size hardly
	// starts: Go reserves more than it uses, 2 GiB together.
	smallAddressSpace = 4 << 30
)

func fileSizes() Check {
	return limit("file sizes", unix.RLIMIT_FSIZE, smallFiles, "a store is one file, as large as omnibus.ring_bytes, and so are an arena and a large payload; raise `ulimit -f`")
}

func addresses() Check {
	return limit("address space", unix.RLIMIT_AS, smallAddressSpace, "a host reserves some 2 GiB beside its store, and each process maps what others share; raise `ulimit -v`")
}

// limit checks a limit in bytes, and gives advice if it is low. The soft limit counts, since this
// process does not raise it.
func limit(name string, resource int, little uint64, advice string) Check {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return note(name, err.Error(), "the limit is not known")
	}
	return limited(name, r.Cur, little, advice)
}

func limited(name string, bytes, little uint64, advice string) Check {
	if bytes == unix.RLIM_INFINITY {
		return found(name, "no limit found")
	}
	c := found(name, "at most %d MiB", bytes>>20)
	if bytes < little {
		c.Verdict, c.Advice = Note, fmt.Sprintf("little, below %d MiB: %s", little>>20, advice)
	}
	return c
}

// littleMemory is too little for a store of the default size and some arenas.
const littleMemory = 256 << 20

func memory() Check {
	const name = "memory"
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return note(name, err.Error(), "what is free is not known")
	}
	available, ok := field(string(text), "MemAvailable:")
	if !ok {
		return note(name, "no MemAvailable in /proc/meminfo", "what is free is not known")
	}
	return spaceCheck(name, available<<10, "available")
}

func spaceCheck(name string, bytes int64, what string) Check {
	c := found(name, "%d MiB %s", bytes>>20, what)
	if bytes < littleMemory {
		c.Verdict, c.Advice = Note, "little: the store and the arenas of the processes are allocated when they start; set omnibus.ring_bytes"
	}
	return c
}

// field returns the number after a name in a file of /proc.
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, err := strconv.ParseInt(f[0], 10, 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// cgroup checks the memory limit of the cgroup, against which shared memory counts.
func cgroup() Check {
	const name = "memory of the group"
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return note(name, err.Error(), "whether there is a limit is not known")
	}
	limit, used, ok := groupLimit("/sys/fs/cgroup", string(text))
	if !ok {
		return found(name, "no limit found")
	}
	return spaceCheck(name, limit-used, fmt.Sprintf("left of %d MiB", limit>>20))
}

// groupLimit returns the tightest limit between the process's group and the
// root, of either version of cgroups, and what is used of it.
func groupLimit(root, membership string) (limit, used int64, ok bool) {
	for line := range strings.Lines(membership) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, most, current := root, "memory.max", "memory.current"
		if parts[1] != "" {
			if parts[1] != "memory" {
				continue
			}
			base, most, current = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		}
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			at := filepath.Join(base, dir)
			l, limited := readNumber(filepath.Join(at, most))
			u, known := readNumber(filepath.Join(at, current))
			if limited && known && l < noLimit && (!ok || l-u < limit-used) {
				limit, used, ok = l, u, true
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, used, ok
}

// noLimit is just below the value by which version 1 of cgroups says that there is no limit.
const noLimit = 1 << 60

func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func namespace() Check {
	const name = "pid namespace"
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return missing(name, err, "/proc must be mounted: it tells how old a process is, and whether it is stopped")
	}
	return found(name, "%s; all processes must be in it (docker run --pid=container:...)", link)
}
