package headroom

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

const (
	// keepBackDivisor: a tenth of what is free is never used.
	keepBackDivisor = 10
	// unlimitedBytes: version 1 of control groups writes "no limit" as a number
	// of about this size.
	unlimitedBytes = 1 << 60
	// maxGroupDepth bounds the walk from a control group to its root.
	maxGroupDepth = 64
)

// A Probe reads the limits.
type Probe struct {
	Proc   fs.FS // /proc
	Cgroup fs.FS // /sys/fs/cgroup
}

// System reads the limits of this process.
func System() Probe { return Probe{Proc: os.DirFS("/proc"), Cgroup: os.DirFS("/sys/fs/cgroup")} }

// A Shortage has the figures of a refusal.
type Shortage struct {
	NeededBytes    uint64
	AvailableBytes uint64 // what the limit leaves now
	KeepBytes      uint64 // the part of it that is never used
	Limit          string // the file the limit was read from
}

// Check compares a need with every limit that can be read, and returns the first
// that is too low, or nil. A limit that cannot be read is ignored.
func (p Probe) Check(needBytes uint64) *Shortage {
	for _, l := range p.limits() {
		keep := l.availableBytes / keepBackDivisor
		if needBytes > l.availableBytes-keep {
			return &Shortage{NeededBytes: needBytes, AvailableBytes: l.availableBytes, KeepBytes: keep, Limit: l.file}
		}
	}
	return nil
}

// MaxBytes is how much memory this process can have at most: the lowest limit that can be read, less
// the part that is never used; 0 if none can be read. Part of it may be in use.
func (p Probe) MaxBytes() uint64 {
	var most uint64
	for i, l := range p.limits() {
		if i == 0 || l.totalBytes < most {
			most = l.totalBytes
		}
	}
	return most - most/keepBackDivisor
}

// limit is one limit, and the memory that it leaves.
type limit struct {
	file           string
	totalBytes     uint64
	availableBytes uint64
}

func (p Probe) limits() []limit {
	var limits []limit
	if info, err := fs.ReadFile(p.Proc, "meminfo"); err == nil {
		if kib, ok := field(info, "MemAvailable:"); ok {
			total, _ := field(info, "MemTotal:")
			limits = append(limits, limit{file: "/proc/meminfo", totalBytes: max(total, kib) << 10, availableBytes: kib << 10})
		}
	}
	groups, err := fs.ReadFile(p.Proc, "self/cgroup")
	if err != nil {
		return limits
	}
	for entry := range strings.Lines(string(groups)) {
		limits = append(limits, p.groupLimits(strings.TrimSpace(entry))...)
	}
	return limits
}

// controller is the memory accounting of one version of control groups.
type controller struct {
	roots              []string // where its hierarchy may be mounted
	limit, usage, idle string   // files, and the field of memory.stat
}

var (
	controllerV1 = controller{
		roots: []string{"memory"},
		limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", idle: "total_inactive_file",
	}
	controllerV2 = controller{
		roots: []string{".", "unified"},
		limit: "memory.max", usage: "memory.current", idle: "inactive_file",
	}
)

// groupLimits reads the limits of the control group in one line of
// /proc/self/cgroup, "id:controllers:path", and of all its ancestors.
func (p Probe) groupLimits(entry string) []limit {
	parts := strings.SplitN(entry, ":", 3)
	if len(parts) != 3 {
		return nil
	}
	c := controllerV2
	switch {
	case parts[0] == "0" && parts[1] == "":
	case strings.Contains(","+parts[1]+",", ",memory,"):
		c = controllerV1
	default:
		return nil
	}
	var limits []limit
	for _, root := range c.roots {
		// Inside a container the path may name groups that are not mounted.
		// The visible groups count, up to the root.
		group := path.Clean("/" + parts[2])
		for range maxGroupDepth {
			if l, err := p.groupLimit(c, path.Join(root, group)); err == nil {
				limits = append(limits, l)
			}
			if group == "/" {
				break
			}
			group = path.Dir(group)
		}
	}
	return limits
}

var errNoLimit = errors.New("no limit")

// groupLimit reads the headroom of one group. Inactive pages of files count as
// free, as they do in MemAvailable.
func (p Probe) groupLimit(c controller, dir string) (limit, error) {
	most, err := p.readNumber(path.Join(dir, c.limit))
	if err != nil {
		return limit{}, err
	}
	if most >= unlimitedBytes {
		return limit{}, errNoLimit
	}
	used, err := p.readNumber(path.Join(dir, c.usage))
	if err != nil {
		return limit{}, err
	}
	if stat, err := fs.ReadFile(p.Cgroup, path.Join(dir, "memory.stat")); err == nil {
		idle, _ := field(stat, c.idle)
		used -= min(used, idle)
	}
	return limit{
		file:           path.Join("/sys/fs/cgroup", dir, c.limit),
		totalBytes:     most,
		availableBytes: most - min(most, used),
	}, nil
}

func (p Probe) readNumber(name string) (uint64, error) {
	b, err := fs.ReadFile(p.Cgroup, name)
	if err != nil {
		return 0, err
	}
	text := string(bytes.TrimSpace(b))
	if text == "max" {
		return 0, errNoLimit
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// field finds the number after a name at the start of a line.
func field(text []byte, name string) (uint64, bool) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) >= 2 && words[0] == name {
			n, err := strconv.ParseUint(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
