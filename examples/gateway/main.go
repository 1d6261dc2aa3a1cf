// Command gateway serves the speech codec of examples/speech over HTTP. The
// bus runs inside it: each POST is one request on the bus, whose input and
// output flow at the same time.
//
//	usage: gateway [-listen ADDRESS] [-requests N] [-max-bytes N]
//	               [-timeout TIME] [-idle TIME] [-grace TIME]
//
// README.md has the interface, with curl lines to try.
//
// An interrupt or SIGTERM drains it: it accepts no new connections, and running
// requests may end, for at most the time of -grace. A second signal ends it at
// once. The exit status is 0, 1 after a failure or when requests were cut off,
// and 2 for an invalid command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// closeLimit bounds the time that an unused bus takes to close.
const closeLimit = 10 * time.Second

func main() {
	listen, grace, opts := parse(os.Args[1:])
	if err := run(listen, grace, opts, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// parse reads the command line, and ends the process if it is invalid.
func parse(args []string) (listen string, grace time.Duration, o options) {
	fs := flag.NewFlagSet("gateway", flag.ExitOnError)
	fs.StringVar(&listen, "listen", "127.0.0.1:8080", "`address` to listen on")
	fs.DurationVar(&grace, "grace", 30*time.Second, "how long requests may go on after a signal")
	fs.IntVar(&o.requests, "requests", defaultRequests, "requests at a time; more are refused")
	fs.Int64Var(&o.maxBytes, "max-bytes", defaultMaxBytes, "largest body, in bytes")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "how long a request may take, at most and by default")
	fs.DurationVar(&o.idle, "idle", defaultIdle, "how long a client may neither send nor read")
	_ = fs.Parse(args) // it exits on an error
	if err := o.validate(); err != nil || fs.NArg() > 0 {
		fmt.Fprintln(fs.Output(), "gateway:", errors.Join(err, unexpected(fs.Args())))
		os.Exit(2)
	}
	o.log = slog.Default()
	return listen, grace, o
}

func unexpected(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("there are only flags, not %q", args)
}

// run serves until a signal arrives, and then until the running requests have
// ended.
func run(listen string, grace time.Duration, opts options, stdout io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g, err := open(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		err = errors.Join(err, g.bus.Close(ctx))
	}()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := g.server()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	fmt.Fprintf(stdout, "listening on http://%s\n", ln.Addr())
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		stop() // the next signal ends the process
		fmt.Fprintln(stdout, "draining")
		return drain(server, grace)
	}
}
