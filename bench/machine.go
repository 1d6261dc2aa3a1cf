package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// A Machine describes the machine of a report.
type Machine struct {
	Go    string `json:"go"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	CPU   string `json:"cpu"`   // the model, where the system reports it
	Cores int    `json:"cores"` // cores that the process may use

	GOMAXPROCS int `json:"gomaxprocs"` // how many of them run Go at once

	GPU string `json:"gpu,omitempty"` // the GPU that RunGPU measured
}

func thisMachine() Machine {
	info, _ := os.ReadFile("/proc/cpuinfo") // exists only on Linux
	return Machine{
		Go:    runtime.Version(),
		OS:    runtime.GOOS,
		Arch:  runtime.GOARCH,
		CPU:   cpuModel(info),
		Cores: runtime.NumCPU(),

		GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
}

// cpuModel finds the name of the first processor in the contents of
// /proc/cpuinfo.
func cpuModel(info []byte) string {
	for line := range bytes.Lines(info) {
		name, value, _ := strings.Cut(string(line), ":")
		if strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// String gives one line.
func (m Machine) String() string {
	text := fmt.Sprintf("%s, %s/%s, %s, %d cores, GOMAXPROCS %d", m.Go, m.OS, m.Arch, m.CPU, m.Cores, m.GOMAXPROCS)
	if m.GPU != "" {
		text += ", " + m.GPU
	}
	return text
}
