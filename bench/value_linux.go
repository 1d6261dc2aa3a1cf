package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

//go:embed python_value.py
var valueScript string

// omniVariable lists directories that contain a package vllm_omni. The first is measured.
const omniVariable = "OMNIBUS_VLLM_OMNI"

// A valueSide is two processes in Python with connectors: one puts values and measures, the
// other gets them.
type valueSide struct{ pythonPair }

// openValueSide opens a side whose connector is a ring at a host of its own, segments, or vLLM-Omni's
// connector.
func openValueSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	connector, place, err := valueConnector(ctx, spec.Carrier)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &valueSide{pythonPair{cluster: c}}
	if spec.Carrier == byRing {
		place, spec.Socket = c.path("host"), c.path("host")
		_, err = s.start(ctx, spec.as(byBusHost))
	}
	if err == nil {
		err = s.call(pythonCommand(ctx, valueScript), connector, strconv.Itoa(spec.Pattern.Size), place)
	}
	return warmedUp(ctx, s, c, spec, err)
}

// valueConnector returns the first and the last argument of the script, or an error that names
// the missing part.
func valueConnector(ctx context.Context, by carrierName) (connector, place string, err error) {
	if err := needPython(ctx, "numpy"); err != nil {
		return "", "", err
	}
	if by != byVLLMOmni {
		connector = map[carrierName]string{byRing: "ring", bySegment: "segment"}[by]
		return connector, "", needPython(ctx, pythonClient)
	}
	all := filepath.SplitList(os.Getenv(omniVariable))
	if len(all) == 0 {
		return "", "", fmt.Errorf("%w: %s names no directory of vLLM-Omni", errors.ErrUnsupported, omniVariable)
	}
	check := pythonCommand(ctx, valueScript)
	check.Args = append(check.Args, "vllm-omni", "0", all[0])
	return "vllm-omni", all[0], needCommand(check, "vLLM-Omni's connector in "+all[0])
}

// close also removes the values of processes that were killed.
func (s *valueSide) close(ctx context.Context) error {
	err := s.pythonPair.close(ctx)
	for _, p := range s.peers {
		left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/*omnibus-bench-%d_*", p.cmd.Process.Pid)) // the pattern is right
		for _, name := range left {
			if gone := os.Remove(name); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
