package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quickly has a scenario make one hand-over in a slice.
func quickly(s scenario) scenario {
	open := s.open
	s.open = func(ctx context.Context, opts Options) (trial, error) {
		t, err := open(ctx, opts)
		if r, ok := t.(*race); ok {
			r.pattern.Runs = 1
		}
		return t, err
	}
	s.rounds = 1
	return s
}

// TestConnectorScenarios checks that all means hand over values of all sizes, which
// whoever puts looks at, and that each figure comes of it.
func TestConnectorScenarios(t *testing.T) {
	needPythonTest(t)
	for _, s := range connectorScenarios() {
		t.Run(s.name, func(t *testing.T) {
			report, err := run(t.Context(), Options{Quick: true, Peer: testPeer}, []scenario{quickly(s)})
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Skipped) > 0 {
				t.Skip(report.Skipped[0].Reason)
			}
			for i, r := range report.Results {
				m := s.metrics[i]
				if r.Name != s.resultName(m) || r.Value <= 0 {
					t.Errorf("%+v is no time of %s", r, s.resultName(m))
				}
				if alone := i == 0; alone != (r.Baseline == nil) || (m.speed && !alone) != (r.Speed != nil) {
					t.Errorf("%s: baseline %v, speed %v", r.Name, r.Baseline, r.Speed)
				}
			}
		})
	}
}

func needPythonTest(t *testing.T) {
	t.Helper()
	if err := needPython(t.Context(), pythonClient); err != nil {
		t.Skip(err)
	}
}

// TestConnectorNames checks that figures keep their names, and that the table says
// beside what they stand.
func TestConnectorNames(t *testing.T) {
	for directory, reference := range map[string]string{"": "stand-in", "/nowhere": "reference"} {
		t.Setenv(omniVariable, directory)
		var want []string
		for _, size := range []string{"1KiB", "4KiB", "16KiB", "64KiB", "1MiB", "16MiB"} {
			for _, name := range []string{
				reference, "python-ring", "python-segment", "python-bare", "python-locked", "go-ring", "go-ring-nodes", "go-floor", "go-segment", "go-bare", "go-locked",
				"python-segment-to-bare", "python-segment-to-locked", "python-locked-to-bare",
				"go-segment-to-bare", "go-segment-to-locked", "go-locked-to-bare",
			} {
				want = append(want, "connector/size="+size+"/"+name)
			}
		}
		if got := NamesConnector(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestConnectorTargets checks what is promised, and for what size.
func TestConnectorTargets(t *testing.T) {
	for _, s := range connectorScenarios() {
		for _, m := range s.metrics {
			var want target
			switch _, size, _ := strings.Cut(s.name, "size="); {
			case strings.HasSuffix(m.name, "-segment-to-bare"):
				want = ratioUpTo(1.2)
			case m.name == "python-ring" && size != "64KiB":
				want = speedOf(map[string]float64{"1MiB": 3, "16MiB": 10, "1KiB": 1, "4KiB": 1, "16KiB": 1}[size])
			case size == "1MiB" && strings.HasPrefix(m.name, "go-ring"):
				want = speedOf(15)
			}
			if m.target != want {
				t.Errorf("%s has the target %v, want %v", s.resultName(m), m.target, want)
			}
		}
	}
}

// connectorMeans are all means in Go, and of those in Python one with a host and one
// without: the rest of the script is the same.
var connectorMeans = []connectorSpec{
	{By: byRing},
	{By: byRing, Hosts: true},
	{By: bySegment},
	{By: byFile},
	{By: byLocked},
	{By: byMemory},
	{By: byStandIn, Python: true},
	{By: byRing, Python: true},
}

func (s connectorSpec) testName() string {
	name := string(s.By)
	if s.Python {
		name += " in Python"
	}
	if s.Hosts {
		name += " of its own"
	}
	return name
}

// TestConnectorPeerDies checks that a run ends with an error, and does not wait for
// ever, when either of the two processes dies.
func TestConnectorPeerDies(t *testing.T) {
	for _, c := range connectorMeans {
		for _, who := range []string{"putter", "getter"} {
			t.Run(c.testName()+"/"+who, func(t *testing.T) {
				if c.Python {
					needPythonTest(t)
				}
				var s *connectorSide
				t.Cleanup(func() { // after the side was closed
					if s == nil {
						return
					}
					left, err := filepath.Glob(bareDirectory + "*" + benchRequest(s.putter.cmd.Process.Pid) + "_*")
					if err != nil || len(left) > 0 {
						t.Errorf("left: %q, %v", left, err)
					}
				})
				s = openTest(t, peerSpec{Carrier: byConnector, Connector: &c, Pattern: roundTrip(kib)}).(*connectorSide)
				p := map[string]*peer{"putter": s.putter, "getter": s.getter}[who]
				if _, err := s.run(t.Context(), 3); err != nil {
					t.Fatal(err)
				}
				if err := p.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				const many = 1 << 30 // values, far more than there is time for
				if _, err := s.run(t.Context(), many); !errors.Is(err, errPeerDied) {
					t.Errorf("a run without a %s: %v", who, err)
				}
			})
		}
	}
}

// TestConnectorWithoutPython checks that what is missing is skipped by name.
func TestConnectorWithoutPython(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(pythonVariable, "")
	spec := peerSpec{Carrier: byConnector, Connector: &connectorSpec{By: byStandIn, Python: true}, Pattern: roundTrip(kib)}
	_, err := openSide(t.Context(), Options{}, spec)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "python3") {
		t.Errorf("got %v", err)
	}
}

// TestConnectorWithoutReference checks that what is missing is skipped by name.
func TestConnectorWithoutReference(t *testing.T) {
	needPythonTest(t)
	t.Setenv(omniVariable, t.TempDir())
	match := regexp.MustCompile("size=1KiB/go-ring$")
	report, err := RunConnector(t.Context(), Options{Quick: true, Peer: testPeer, Match: match})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Skipped) != 1 || !strings.Contains(report.Skipped[0].Reason, "vLLM-Omni") {
		t.Errorf("skipped: %+v", report.Skipped)
	}
}

// TestAddWords checks that every word counts, and those that are left over.
func TestAddWords(t *testing.T) {
	for _, words := range []int{0, 1, 3, 4, 5, 9, 1000} {
		v, want := newBenchValue(words * wordBytes)
		if got := addWords(v.Hidden.Data); got != want || want != uint64(words*(words-1)/2) {
			t.Errorf("%d words add up to %d, want %d", words, got, want)
		}
		for i := range words {
			v.Hidden.Data[i*wordBytes]++
			if addWords(v.Hidden.Data) == want {
				t.Errorf("word %d of %d does not count", i, words)
			}
			v.Hidden.Data[i*wordBytes]--
		}
	}
}

// TestConnectorRefuses checks that a value of other words than were put is noticed.
func TestConnectorRefuses(t *testing.T) {
	in, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := answers.WriteString("12\n"); err != nil {
		t.Fatal(err)
	}
	_ = answers.Close()
	e := &connectorEnd{}
	if err := e.open(t.Context(), peerSpec{Connector: &connectorSpec{By: byFile}}); err != nil {
		t.Fatal(err)
	}
	e.useFiles(in, discard(t))
	value, sum := newBenchValue(kib)
	key := benchKey(os.Getpid(), 1)
	defer os.Remove(bareDirectory + key)
	if err := e.put(t.Context(), key, value, sum); err == nil || !strings.Contains(err.Error(), "arrived as something else") {
		t.Errorf("got %v", err)
	}
}

func discard(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
