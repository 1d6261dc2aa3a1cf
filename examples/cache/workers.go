package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

const (
	hostSocket, storeSocket = "host.sock", "store.sock"

	storeVariable = "CACHE_STORE" // the path of the store, for a worker
	restartPause  = 100 * time.Millisecond
	killDelay     = 5 * time.Second
)

//go:embed histogram.py
var histogram []byte

// workerStage describes the stage of a worker. When the worker dies, its handles go to the next process, without a
// limit of attempts: if the request failed, the other worker might not get its handle.
func workerStage(name string) bus.StageSpec {
	return bus.StageSpec{Name: name, Remote: &bus.Remote{}, State: bus.StateNone, Attempts: math.MaxInt}
}

// startWorkers returns when both workers serve. They are charged for every later put.
func startWorkers(ctx context.Context, folder string, serving <-chan string) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	script := filepath.Join(folder, "histogram.py")
	if err := os.WriteFile(script, histogram, 0o600); err != nil {
		return nil, err
	}
	died := make(chan error, 1)
	var running sync.WaitGroup
	forLong, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the workers run until the last request is answered
	stop = func() {
		cancel()
		running.Wait()
	}
	running.Go(func() { keep(forLong, died, folder, "mean", self) })
	running.Go(func() { keep(forLong, died, folder, "histogram", "python3", script) })
	for range 2 {
		select {
		case <-serving:
			continue
		case err = <-died:
		case <-ctx.Done():
			err = ctx.Err()
		}
		stop()
		return nil, err
	}
	return stop, nil
}

// keep runs a worker, and starts it again when it has died. died receives the error of the first death.
func keep(ctx context.Context, died chan<- error, folder, stage string, command ...string) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = killDelay
		cmd.Env = append(os.Environ(), node.EnvStage+"="+stage, node.EnvBus+"="+busName,
			node.EnvSocket+"="+filepath.Join(folder, hostSocket), storeVariable+"="+filepath.Join(folder, storeSocket))
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		err := cmd.Start()
		if err == nil {
			log.Printf("worker %s is process %d", stage, cmd.Process.Pid)
			err = cmd.Wait()
		}
		if ctx.Err() != nil {
			return
		}
		log.Printf("worker %s has ended: %v", stage, err)
		select {
		case died <- fmt.Errorf("worker %s has ended: %w", stage, err):
		default:
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartPause):
		}
	}
}
