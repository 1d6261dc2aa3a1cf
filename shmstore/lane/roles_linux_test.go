package lane

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

var roles = map[string]func(*duplex) error{
	"echo":    runEcho,
	"socket":  runSocketEcho,
	"source":  runSource,
	"sink":    runSink,
	"writer":  runWriter,
	"drip":    runDrip,
	"swallow": runSwallow,
}

// runEcho sends every frame back, from the second processor.
func runEcho(d *duplex) error {
	if err := pin(1); err != nil {
		return err
	}
	for {
		if err := d.await(); err != nil {
			return err
		}
		for frame, kind, ok := d.Next(); ok; frame, kind, ok = d.Next() {
			if err := send(d.Sender, kind, frame, nil); err != nil {
				return err
			}
		}
		d.Advance()
	}
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

// processFrames is how many frames are sent between two processes.
const processFrames = 100_000 / raceSlowdown

func runSource(d *duplex) error {
	if err := sendChecked(d.Sender, processFrames, nil); err != nil {
		return err
	}
	return d.await() // until the parent has received all
}

func runSink(d *duplex) error {
	if err := receiveChecked(d.Receiver, processFrames, d.sleep); err != nil {
		return err
	}
	return d.TrySend(1, nil)
}

// runWriter writes to memory that it may only read.
func runWriter(d *duplex) error {
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		_ = unix.Dup3(int(null.Fd()), 2, 0) // hides the trace of the expected crash
	}
	if err := d.await(); err != nil {
		return err
	}
	frame, _, _ := d.Next()
	frame[0]++
	return nil
}

// runDrip sends frames one by one.
func runDrip(d *duplex) error {
	rng := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, d.maxFrame)
	for number := uint64(0); ; number++ {
		if err := send(d.Sender, Kind(number%1000), checkedFrame(buf, number, rng), nil); err != nil {
			return err
		}
	}
}

// runSwallow frees frames one by one.
func runSwallow(d *duplex) error {
	for {
		if err := d.await(); err != nil {
			return err
		}
		receiveOne(d.Receiver)
	}
}
