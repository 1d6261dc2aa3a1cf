package headroom

import (
	"testing"
	"testing/fstest"
)

func files(m map[string]string) fstest.MapFS {
	fs := make(fstest.MapFS)
	for name, text := range m {
		fs[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fs
}

func TestProbe(t *testing.T) {
	const gib = 1 << 30
	proc := func(cgroup string) fstest.MapFS {
		return files(map[string]string{
			"meminfo":     "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:   10485760 kB\n", // 10 GiB
			"self/cgroup": cgroup,
		})
	}
	for _, tc := range []struct {
		name   string
		proc   fstest.MapFS
		cgroup map[string]string
		need   uint64
		limit  string // "" means there is enough
		left   uint64
	}{
		{name: "enough", proc: proc("0::/\n"), need: 9 * gib},
		{name: "not with the tenth that is kept", proc: proc("0::/\n"), need: 9*gib + 1, limit: "/proc/meminfo", left: 10 * gib},
		{name: "nothing can be read", proc: files(nil), need: 1 << 50},
		{
			name: "version 2, an ancestor is the limit", proc: proc("0::/a/b/c\n"), need: gib,
			cgroup: map[string]string{
				"a/b/c/memory.max": "max\n", "a/b/c/memory.current": "0\n",
				"a/b/memory.max": "2147483648\n", "a/b/memory.current": "2000000000\n",
				"a/memory.max": "107374182400\n", "a/memory.current": "0\n",
			},
			limit: "/sys/fs/cgroup/a/b/memory.max", left: 147483648,
		},
		{
			name: "version 2, idle file pages are free", proc: proc("0::/a\n"), need: gib,
			cgroup: map[string]string{
				"a/memory.max": "2147483648\n", "a/memory.current": "2000000000\n",
				"a/memory.stat": "anon 5\ninactive_file 1900000000\n",
			},
		},
		{
			name: "version 2 inside a container", proc: proc("0::/not/mounted/here\n"), need: gib,
			cgroup: map[string]string{"memory.max": "1000000\n", "memory.current": "400000\n"},
			limit:  "/sys/fs/cgroup/memory.max", left: 600000,
		},
		{
			name: "over its limit", proc: proc("0::/a\n"), need: 1,
			cgroup: map[string]string{"a/memory.max": "5\n", "a/memory.current": "9\n"},
			limit:  "/sys/fs/cgroup/a/memory.max", left: 0,
		},
		{
			name: "version 1", proc: proc("5:cpu:/x\n4:hugetlb,memory:/a/b\n0::/\n"), need: gib,
			cgroup: map[string]string{
				"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/b/memory.usage_in_bytes": "1\n",
				"memory/a/memory.limit_in_bytes": "1073741824\n", "memory/a/memory.usage_in_bytes": "73741824\n",
				"memory/a/memory.stat": "inactive_file 99\ntotal_inactive_file 41824\n",
			},
			limit: "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", left: 1000041824,
		},
		{
			name: "both versions", proc: proc("0::/a\n"), need: gib,
			cgroup: map[string]string{"unified/a/memory.max": "100\n", "unified/a/memory.current": "0\n"},
			limit:  "/sys/fs/cgroup/unified/a/memory.max", left: 100,
		},
		{
			name: "garbage", proc: proc("x\n::\n0::/../../a\n0:memory\n"), need: gib,
			cgroup: map[string]string{"a/memory.max": "many\n", "memory.max": ""},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused := Probe{Proc: tc.proc, Cgroup: files(tc.cgroup)}.Check(tc.need)
			if tc.limit == "" {
				if refused != nil {
					t.Errorf("refused: %+v", *refused)
				}
				return
			}
			want := Shortage{NeededBytes: tc.need, AvailableBytes: tc.left, KeepBytes: tc.left / 10, Limit: tc.limit}
			if refused == nil || *refused != want {
				t.Errorf("refused with %+v, want %+v", refused, want)
			}
		})
	}
}
