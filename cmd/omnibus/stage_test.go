package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// stageMain is the program "stage" of the scripts: it serves the stage that a
// host started it for, and those that its arguments name, with capital letters.
func stageMain() {
	if err := serveStages(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func serveStages() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := node.Join(ctx, "stage", node.JoinOptions{})
	if err != nil {
		return err
	}
	var specs []bus.StageSpec
	for _, name := range append([]string{os.Getenv(node.EnvStage)}, os.Args[1:]...) {
		specs = append(specs, bus.StageSpec{Name: name, Handle: capitals})
	}
	return errors.Join(n.Serve(ctx, specs...), n.Close(context.Background()))
}

// embeddedMain is the program "embedded" of the scripts: it hosts a bus of its own, of which other processes serve one stage,
// while its arguments run as a command.
func embeddedMain() {
	if err := embed(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func embed(ctx context.Context) (err error) {
	spec := bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "thinker", Handle: capitals}, {Name: "talker", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: "thinker", To: "talker"}},
	}
	b, err := bus.Open(ctx, spec, bus.Options{Name: "embedded", Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Shared}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	path, err := node.SocketPath("embedded")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	s, err := host.Listen(b, path, host.ListenOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// pageMain is the program "page" of the scripts: it prints the status and the text of a page of the
// host whose name is the first argument.
func pageMain() {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "omnibus", os.Args[1]+".http.sock"))
	}}}
	resp, err := client.Get("http://host" + os.Args[2])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer resp.Body.Close()
	fmt.Print(os.Args[2], " ", resp.StatusCode, " ")
	_, _ = io.Copy(os.Stdout, resp.Body)
}

// capitals handles an input, and worse when told to.
func capitals(t *bus.Task, d *bus.Delivery) error {
	switch in := string(d.Bytes()); {
	case strings.HasPrefix(in, "crash"):
		fmt.Println("no such voice")
		os.Exit(3)
	case strings.HasPrefix(in, "fail"):
		return errors.New("no such language")
	case strings.HasPrefix(in, "wait"):
		<-t.Context().Done()
		return nil
	case strings.HasPrefix(in, "red"):
		return errors.New("\x1b[31mred\nand more")
	case strings.HasPrefix(in, "nan"):
		return t.Emit(math.NaN())
	case d.PayloadCodec() == codec.IDMsgpack:
		var v any
		if err := d.Decode(&v); err != nil {
			return err
		}
		return t.Emit(map[string]any{"was": v})
	}
	out, encoding := bytes.ToUpper(d.Bytes()), codec.IDRaw
	if bytes.HasPrefix(out, []byte("BUNDLE")) {
		encoding = codec.IDBundle
	}
	w, err := t.Reserve(len(out), encoding)
	if err != nil {
		return err
	}
	copy(w.Bytes(), out)
	return w.Send(len(out))
}
