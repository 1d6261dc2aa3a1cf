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

// Defaults of what a pipeline file leaves open.
const (
	DefaultGrace        = 10 * time.Second // for open requests when the host drains
	DefaultStageGrace   = 5 * time.Second  // between SIGTERM and SIGKILL
	DefaultStartTimeout = 10 * time.Minute
	DefaultStartReport  = 30 * time.Second // between lines that say what a start waits for
	DefaultStallTimeout = 5 * time.Second
)

// Options say what to run. Pipeline is needed.
type Options struct {
	Pipeline *config.Pipeline
	// Handlers do the work of stages that are not processes; nil: all are.
	Handlers map[string]config.Factory
	// Connectors are the types that edges can have connectors of, besides
	// those whose payloads stay in the store; nil: none.
	Connectors *connector.Registry

	// Main is the command line of the main process, found from the working
	// directory; empty: that of the pipeline file, if it has one.
	Main []string
	// Socket and HTTP take the place of those of the file.
	Socket, HTTP string
	// Wait takes the place of the file's.
	Wait bus.Wait
	// Grace takes the place of the file's.
	Grace time.Duration
	// StartReport is how often a line says what a start waits for; 0: every [DefaultStartReport].
	StartReport time.Duration

	// Quit, when it is closed, ends a run that is draining at once, with ErrQuit. A run that hangs, and
	// does not end by itself, is left behind: its processes are killed, and Run returns.
	Quit <-chan struct{}

	// Stdin and Stdout are the main process's, and so is Stderr.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Outlet gets what the stages print and the lines that say what the host is
	// doing; nil: one of Stderr is made.
	Outlet *Outlet
	// Logger is told of processes that start and end, and of stalls; nil
	// discards.
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

// validateWait refuses what the bus would take from the environment: its error would be
// reported as one of the pipeline file.
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
