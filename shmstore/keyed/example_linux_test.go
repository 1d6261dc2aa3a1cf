package keyed_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// One process puts a value under a key, another reads it by its handle. The other process is this program again: its
// TestMain calls exampleReader.
func Example() {
	if err := exampleWriter(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the reader says ready
	// the reader says 640x480
	// the reader says 640x480
	// 1 put, 1 hit
}

func exampleWriter() error {
	folder, err := os.MkdirTemp("", "keyed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "cache.sock")
	store, err := keyed.Create(keyed.Options{Store: shmstore.Options{ArenaBytes: 1 << 20}})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.Listen(path); err != nil {
		return err
	}
	handles, said, err := startExampleReader(path)
	if err != nil {
		return err
	}
	defer handles.Close() // the reader ends when it is closed
	said.Scan()
	fmt.Println("the reader says", said.Text())

	image := map[string]int{"width": 640, "height": 480}
	for range 2 { // two requests have the same image
		handle, err := store.Put("image-5e1f", image)
		if errors.Is(err, keyed.ErrExists) {
			handle, err = store.GetCached("image-5e1f")
		}
		if err != nil {
			return err
		}
		wire, err := handle.MarshalBinary() // sent over any channel of the program
		if err != nil {
			return err
		}
		fmt.Fprintln(handles, hex.EncodeToString(wire))
		said.Scan()
		fmt.Println("the reader says", said.Text())
	}
	fmt.Printf("%d put, %d hit\n", store.Stats().Puts, store.Stats().Hits)
	return nil
}

func startExampleReader(path string) (handles io.WriteCloser, said *bufio.Scanner, err error) {
	reader := exec.Command(os.Args[0])
	reader.Env = append(os.Environ(), roleVariable+"=example "+path)
	reader.Stderr = os.Stderr
	if handles, err = reader.StdinPipe(); err != nil {
		return nil, nil, err
	}
	output, err := reader.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return handles, bufio.NewScanner(output), reader.Start()
}

// exampleReader is the other process of the example.
func exampleReader(path string) error {
	reader, err := keyed.Dial(path)
	if err != nil {
		return err
	}
	defer reader.Close()
	fmt.Fprintln(os.Stdout, "ready")
	for {
		var line string
		if _, err := fmt.Scanln(&line); err != nil {
			return nil // no more handles
		}
		wire, err := hex.DecodeString(line)
		if err != nil {
			return err
		}
		var handle shmstore.Handle
		if err := handle.UnmarshalBinary(wire); err != nil {
			return err
		}
		value, err := reader.Get(handle)
		if err != nil {
			return err
		}
		var size map[string]int
		err = value.Decode(&size)
		value.Release()
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%dx%d\n", size["width"], size["height"])
	}
}
