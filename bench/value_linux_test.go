package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestValueWithoutVLLMOmni: the columns of omnibus are measured where vLLM-Omni is missing, and
// its column is skipped with a reason.
func TestValueWithoutVLLMOmni(t *testing.T) {
	if err := needPython(t.Context(), "numpy"); err != nil {
		t.Skip(err)
	}
	for directory, reason := range map[string]string{
		"":          "OMNIBUS_VLLM_OMNI names no directory of vLLM-Omni",
		t.TempDir(): "No module named 'vllm_omni.distributed.omni_connectors.connectors.shm_connector'",
	} {
		t.Setenv(omniVariable, directory)
		table, err := Run(t.Context(), Options{Peer: testPeer, Rounds: 1, Slice: time.Millisecond, Match: regexp.MustCompile("^value/4KiB$")})
		if err != nil {
			t.Fatal(err)
		}
		if len(table.Skipped) != 1 || table.Skipped[0].Scenario != "value/4KiB by vllm-omni" || !strings.Contains(table.Skipped[0].Reason, reason) {
			t.Errorf("skipped: %+v", table.Skipped)
		}
		var columns []string
		for _, c := range table.Rows[0].Cells {
			columns = append(columns, c.Column)
		}
		if diff := cmp.Diff([]string{ours, segmentFiles}, columns); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestValueRefuses: a run fails when a value arrives with wrong content, or not at all.
func TestValueRefuses(t *testing.T) {
	for got, want := range map[string]string{
		`{"hidden": np.zeros(512, "<u8")}, 4096`: "a value arrived as something else: its words add up to 0 and not to 130816",
		`None`:                                   "nothing was there to get",
	} {
		directory := t.TempDir()
		connectors := filepath.Join(directory, "vllm_omni", "distributed", "omni_connectors", "connectors")
		if err := os.MkdirAll(connectors, 0o700); err != nil {
			t.Fatal(err)
		}
		source := "import numpy as np\n\n\nclass SharedMemoryConnector:\n" +
			"    def __init__(self, config):\n        pass\n\n" +
			"    def put(self, a, b, key, value):\n        return True, 0, {}\n\n" +
			"    def get(self, a, b, key, metadata):\n        return " + got + "\n\n" +
			"    def close(self):\n        pass\n"
		if err := os.WriteFile(filepath.Join(connectors, "shm_connector.py"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(omniVariable, directory)
		_, err := openSide(t.Context(), Options{Peer: testPeer}.withDefaults(), peerSpec{Carrier: byVLLMOmni, Pattern: roundTrip(4 * kib)})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", got, err, want)
		}
	}
}

// TestValuePeersDie: a run ends with an error when the process that puts or the process that gets
// dies, and no file is left.
func TestValuePeersDie(t *testing.T) {
	for _, by := range []carrierName{byRing, bySegment, byVLLMOmni} {
		for _, victim := range []string{"putter", "getter"} {
			t.Run(string(by)+"/"+victim, func(t *testing.T) {
				var putter int
				t.Cleanup(func() { // after the side is closed
					left, err := filepath.Glob(fmt.Sprintf("/dev/shm/*omnibus-bench-%d_*", putter))
					if err != nil || putter != 0 && len(left) > 0 {
						t.Errorf("left: %q, %v", left, err)
					}
				})
				s := openPeerTest(t, peerSpec{Carrier: by, Pattern: roundTrip(4 * kib)}).(*valueSide)
				putter = s.peers[len(s.peers)-1].cmd.Process.Pid
				// A value that is in transit when the process dies may leave such a file.
				if err := os.WriteFile(fmt.Sprintf("/dev/shm/omnibus-bench-%d_0_left", putter), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				pid := putter
				if victim == "getter" {
					children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", putter, putter))
					if err != nil {
						t.Skip(err)
					}
					if _, err := fmt.Sscan(string(children), &pid); err != nil {
						t.Fatalf("%q: %v", children, err)
					}
				}
				process, err := os.FindProcess(pid)
				if err == nil {
					err = process.Kill()
				}
				if err != nil {
					t.Fatal(err)
				}
				const many = 1 << 30 // far more than there is time for
				if _, err := s.run(t.Context(), many); !errors.Is(err, errPeerDied) {
					t.Errorf("a run without a %s: %v", victim, err)
				}
			})
		}
	}
}
