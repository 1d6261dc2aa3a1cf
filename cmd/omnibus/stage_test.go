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
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
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
