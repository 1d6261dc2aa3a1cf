package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
)

// TestMain makes the test binary a stage's process or the main process if a host started it as one.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(node.EnvStage) != "":
		os.Exit(serve(os.Getenv(node.EnvStage)))
	case len(os.Args) == 3 && os.Args[1] == "submit":
		os.Exit(submit(os.Args[2]))
	case len(os.Args) == 3 && os.Args[1] == "exit":
		os.Exit(int(os.Args[2][0] - '0'))
	case len(os.Args) == 2 && os.Args[1] == "wait":
		time.Sleep(time.Hour) //nolint:forbidigo // it waits for a signal to kill it; select {} would be a deadlock
	}
	os.Exit(m.Run())
}

// crashing is a stage whose processes end right after they have served it.
const crashing = "crashing"

// lingering is a stage whose processes wait for a signal when the host has drained.
const lingering = "lingering"

// simple is a stage whose processes do not handle signals, and rejoin.
const simple = "simple"

// crash is a request that kills its stage's process. It is submitted until a process serves the stage.
func crash(ctx context.Context, n *node.Node) {
	req, err := n.Stream(ctx)
	if err == nil {
		err = req.Input(ctx).EmitBytes([]byte("crash"), bus.Last())
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
	}
}

// serve does a stage's work: capital letters, or the misbehaviour that the request asks for.
func serve(stage string) int {
	switch stage {
	case "broken": // when the other process ignores signals
		_, _ = os.ReadFile(os.Getenv("DEAF"))
		fmt.Fprintln(os.Stdout, "no such model")
		return 3
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		_ = os.WriteFile(os.Getenv("DEAF"), nil, 0)
		time.Sleep(time.Hour) //nolint:forbidigo // until it is killed
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if stage == simple {
		stop() // SIGTERM ends it at once
		ctx = context.Background()
	}
	n, err := node.Join(ctx, stage, node.JoinOptions{Rejoin: stage == simple})
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	if stage == crashing {
		go crash(ctx, n)
	}
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	err = n.Serve(leaving, bus.StageSpec{Name: stage, Handle: func(t *bus.Task, d *bus.Delivery) error {
		if string(d.Bytes()) == "leave" {
			leave()
		}
		return handle(t, d)
	}})
	if err := errors.Join(err, n.Close(context.Background())); err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	if leaving.Err() != nil || stage == lingering {
		<-ctx.Done() // the process lives on and serves no stage
	}
	return 0
}

// submit joins the host of user 0 at a socket, submits a word, and prints the result.
func submit(socket string) int {
	ctx := context.Background()
	n, err := node.Join(ctx, "submit", node.JoinOptions{Socket: socket, AllowUIDs: []uint32{0}})
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	var word []byte
	r, err := n.Stream(ctx)
	if err == nil {
		err = r.Input(ctx).EmitBytes([]byte("word"), bus.Last())
	}
	if err == nil {
		var d *bus.Delivery
		if d, err = r.Recv(ctx); err == nil {
			word = bytes.Clone(d.Bytes())
			_ = d.Finish(nil)
		}
	}
	fmt.Fprintf(os.Stdout, "%s", word)
	if err := errors.Join(err, n.Close(ctx)); err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	return 0
}

func handle(t *bus.Task, d *bus.Delivery) error {
	switch in := string(d.Bytes()); {
	case strings.HasPrefix(in, "crash"):
		fmt.Fprintln(os.Stdout, "no such voice")
		os.Exit(3)
	case in == "exit":
		os.Exit(0)
	case in == "process":
		return t.EmitBytes(strconv.AppendInt(nil, int64(os.Getpid()), 10))
	case in == "hang":
		select {} // and never see SIGTERM
	}
	out := bytes.ToUpper(d.Bytes())
	w, err := t.Reserve(len(out), codec.IDRaw)
	if err != nil {
		return err
	}
	copy(w.Bytes(), out)
	return w.Send(len(out))
}
