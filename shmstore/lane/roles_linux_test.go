package lane

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

var roles = map[string]func(*duplex) error{
	"echo":    runEcho,
	"pinned":  runPinnedEcho,
	"socket":  runSocketEcho,
	"source":  runSource,
	"sink":    runSink,
	"writer":  runWriter,
	"drip":    runDrip,
	"swallow": runSwallow,
}

// runEcho sends every frame back.
func runEcho(d *duplex) error {
	ctx := context.Background()
	for {
		if err := d.Receiver.Wait(ctx); err != nil {
			return err
		}
		for frame, kind, ok := d.Next(); ok; frame, kind, ok = d.Next() {
			if err := d.Send(ctx, kind, frame); err != nil {
				return err
			}
		}
		d.Advance()
	}
}

// runPinnedEcho does it on the second processor.
func runPinnedEcho(d *duplex) error {
	if err := pin(1); err != nil {
		return err
	}
	return runEcho(d)
}

// pin keeps this goroutine on one processor, for good.
func pin(processor int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(processor)
	return unix.SchedSetaffinity(0, &set)
}

// runSocketEcho does the same over the socket, for comparison.
func runSocketEcho(d *duplex) error {
	buf := make([]byte, 4096)
	for {
		n, err := d.socket.Read(buf)
		if err != nil {
			return nil //nolint:nilerr // the parent is done
		}
		if _, err := d.socket.Write(buf[:n]); err != nil {
			return errors.Join(errors.New("echo"), err)
		}
	}
}

// processFrames is how many frames go between two processes.
const processFrames = 100_000 / raceSlowdown

func runSource(d *duplex) error {
	if err := sendChecked(context.Background(), d.Sender, processFrames); err != nil {
		return err
	}
	return d.Receiver.Wait(context.Background()) // until the parent has them all
}

func runSink(d *duplex) error {
	if err := receiveChecked(context.Background(), d.Receiver, processFrames); err != nil {
		return err
	}
	return d.TrySend(1)
}

// runWriter writes where it may only read.
func runWriter(d *duplex) error {
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		_ = unix.Dup3(int(null.Fd()), 2, 0) // the trace of what follows
	}
	if err := d.Receiver.Wait(context.Background()); err != nil {
		return err
	}
	frame, _, _ := d.Next()
	frame[0]++
	return nil
}

// runDrip publishes frames one by one.
func runDrip(d *duplex) error {
	rng := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, d.maxFrame())
	for number := uint64(0); ; number++ {
		if err := d.Send(context.Background(), Kind(number%1000), checkedFrame(buf, number, rng)); err != nil {
			return err
		}
	}
}

func (d *duplex) maxFrame() int { return d.Sender.maxFrame }

// runSwallow lets go of frames one by one.
func runSwallow(d *duplex) error {
	for {
		if err := d.Receiver.Wait(context.Background()); err != nil {
			return err
		}
		receiveOne(d.Receiver)
	}
}
