package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func init() { addVerb(newVersionCmd) }

func newVersionCmd() *cobra.Command {
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion(debug.ReadBuildInfo())
			if output.word == outputJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			return v.write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

// A version is the source of this program.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func buildVersion(info *debug.BuildInfo, ok bool) version {
	v := version{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v version) write(out io.Writer) error {
	line := "omnibus " + v.Version
	if v.Revision != "" {
		line += fmt.Sprintf(" (%s, %s)", v.Revision, v.Time)
	}
	if v.Modified {
		line += " modified"
	}
	_, err := fmt.Fprintf(out, "%s %s %s/%s\n", line, v.Go, v.OS, v.Arch)
	return err
}
