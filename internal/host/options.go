package host

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/connector"
)

// Defaults for options that a pipeline file leaves out.
const (
	DefaultGrace        = 10 * time.Second // for open requests when the host drains
	DefaultStageGrace   = 5 * time.Second  // between SIGTERM and SIGKILL
	DefaultStartTimeout = 10 * time.Minute
	DefaultStartReport  = 30 * time.Second // between two reports of a waiting start
	DefaultStallTimeout = 5 * time.Second
)

// Options say what to run. Pipeline is required.
type Options struct {
	Pipeline *config.Pipeline
	// Handlers do the work of stages without processes; nil: every stage has processes.
	Handlers map[string]config.Factory
	// Connectors are further connector types, besides those whose payloads stay in the store; nil:
	// none.
	Connectors *connector.Registry

	// Main is the command line of the main process, resolved from the working directory; empty: that of
	// the pipeline file, if any.
	Main []string
	// Socket and HTTP replace those of the file.
	Socket, HTTP string
	// Wait replaces that of the file.
	Wait bus.Wait
	// Grace replaces that of the file.
	Grace time.Duration
	// StartReport is the time between two reports of a waiting start; 0: [DefaultStartReport].
	StartReport time.Duration

	// Quit, when closed, ends a draining run at once, with ErrQuit. If the run hangs and does not end,
	// its processes are killed and Run returns.
	Quit <-chan struct{}

	// Stdin, Stdout and Stderr are those of the main process.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Outlet gets the output of the stages and the host's own lines; nil: one that writes to Stderr is
	// made.
	Outlet *Outlet
	// Logger gets a record for each process that starts or ends, and for each stall; nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Connectors == nil {
		o.Connectors = new(connector.Registry)
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	o.Stderr = shared(o.Stderr)
	if o.Outlet == nil {
		o.Outlet = NewOutlet(o.Stderr)
	}
	if o.StartReport == 0 {
		o.StartReport = DefaultStartReport
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Wait == "" && o.Pipeline != nil {
		o.Wait = o.Pipeline.Bus.Wait
	}
	if o.Grace == 0 && o.Pipeline != nil {
		o.Grace = o.Pipeline.Bus.Grace
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Pipeline == nil:
		return errors.New("host: Options.Pipeline is nil")
	case o.Grace < 0:
		return errors.New("host: Options.Grace is negative")
	case o.HTTP != "":
		if err := config.CheckHTTP(o.HTTP); err != nil {
			return err
		}
	}
	return o.validateWait()
}

// validateWait checks the environment variable that the bus would read: the bus's error would be
// reported as an error of the pipeline file.
func (o Options) validateWait() error {
	way := bus.Wait(os.Getenv(bus.EnvWait))
	if o.Wait != "" || way == "" || slices.Contains(bus.Waits(), way) {
		return nil
	}
	var ways []string
	for _, w := range bus.Waits() {
		ways = append(ways, string(w))
	}
	return fmt.Errorf("the environment variable %s is %q: set it to one of %s, or unset it", bus.EnvWait, way, strings.Join(ways, ", "))
}
