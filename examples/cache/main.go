// Command cache keeps decoded images in a store under keys (package shmstore/keyed) for two workers: processes of their
// own, one in Go and one in Python. It receives images over HTTP, decodes each image once, and sends its handle to the
// workers by a bus. The workers read the pixels in place.
//
//	usage: cache [-listen ADDRESS] [-store BYTES] [-demo]
//
// POST /images answers with JSON: the SHA-256 of a PNG or JPEG, whether its pixels were in the store already, and the
// results of the workers. An interrupt or SIGTERM ends the program when the requests in flight are answered.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

const (
	busName       = "cache"
	headerTimeout = 10 * time.Second
	closeTimeout  = 30 * time.Second
)

func main() {
	if os.Getenv(node.EnvStage) != "" { // the program has started itself as a worker
		if err := serveMean(); err != nil {
			log.Fatal("mean: ", err)
		}
		return
	}
	listen := flag.String("listen", "127.0.0.1:8080", "`address` to listen on")
	storeBytes := flag.Int64("store", 64<<20, "`bytes` of pixels to keep; an image may have a quarter")
	demo := flag.Bool("demo", false, "post a few images, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *listen, *storeBytes, *demo)
	stop()
	if err != nil {
		log.Fatal("cache: ", err)
	}
}

// run makes the store and the bus, starts the workers, and serves.
func run(ctx context.Context, listen string, storeBytes int64, demo bool) (err error) {
	closing := func(end func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, end(ctx))
	}
	folder, err := os.MkdirTemp("", "cache")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()

	largest := storeBytes / 4
	store, err := keyed.Create(keyed.Options{
		Store:      shmstore.Options{ArenaBytes: storeBytes, MaxObjectBytes: largest},
		Serializer: codec.TensorSerializer{},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Listen(filepath.Join(folder, storeSocket)); err != nil {
		return err
	}

	stages := []bus.StageSpec{workerStage("mean"), workerStage("histogram")}
	b, err := bus.Open(ctx, bus.Pipeline{Stages: stages}, bus.Options{Name: busName})
	if err != nil {
		return err
	}
	defer closing(b.Close)
	serving := make(chan string, len(stages))
	server, err := host.Listen(b, filepath.Join(folder, hostSocket), host.ListenOptions{OnServe: func(stage string, _, _ int) {
		select {
		case serving <- stage:
		default: // a worker was started again
		}
	}})
	if err != nil {
		return err
	}
	defer closing(server.Close)
	stop, err := startWorkers(ctx, folder, serving)
	if err != nil {
		return err
	}
	defer stop()

	f := &frontEnd{store: store, largest: largest, bus: b}
	err = serve(ctx, listen, f, demo)
	s := store.Stats()
	fmt.Printf("images: %d, hits: %d, bytes written: %d, bytes saved: %d\n", s.Puts+s.Hits, s.Hits, s.BytesWritten, s.BytesSaved)
	return err
}

// serve answers requests until the context or the demonstration ends.
func serve(ctx context.Context, listen string, f *frontEnd, demo bool) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s/images", listener.Addr())
	fmt.Println("listening on", url)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /images", f.post)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	if demo {
		go func() { ended <- demonstrate(url, os.Stdout) }()
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, server.Shutdown(ctx))
}
