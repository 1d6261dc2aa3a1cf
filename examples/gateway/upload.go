package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/speech"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// errStopped reports a body whose request is over.
var errStopped = errors.New("the request is over")

// upload is the WAV that a client sends. It is read in blocks, each of which
// makes a chunk of coefficients. A block is complete before it takes any space
// on the bus, so a slow client takes no space from others.
type upload struct {
	body  *body
	wav   *wav.Reader
	attrs []bus.EmitOption
	block []int16
	read  int   // values of the block
	err   error // the error that ended reading; io.EOF at the end
}

// openUpload reads the first block, so that an error in it is answered by a
// problem.
func openUpload(b *body, quality float64) (*upload, error) {
	u := &upload{body: b}
	var err error
	if u.wav, err = wav.NewReader(u.body); err != nil {
		return nil, err
	}
	f := u.wav.Format()
	u.block = make([]int16, codec.ChunkFrames*mdct.HopFor(f.Rate)*f.Channels)
	u.attrs = []bus.EmitOption{
		bus.Attr(speech.AttrRate, strconv.Itoa(f.Rate)),
		bus.Attr(speech.AttrQuality, strconv.FormatFloat(quality, 'g', -1, 64)),
	}
	if u.readBlock(); u.err != nil && !errors.Is(u.err, io.EOF) {
		return nil, u.err
	}
	return u, nil
}

// readBlock reads until the block is full, or reading ends.
func (u *upload) readBlock() {
	u.read = 0
	for u.err == nil && u.read < len(u.block) {
		var n int
		n, u.err = u.wav.ReadSamples(u.block[u.read:])
		u.read += n
	}
}

// feed sends the blocks to the stages. It returns an error of the input; the outcome
// of the request is returned with its results. An invalid WAV is coded up to the
// error. A body that ends early ends the request.
func (u *upload) feed(req *bus.Request) error {
	for u.err == nil {
		if !u.emit(req) {
			return nil
		}
		u.readBlock()
	}
	var broken *wav.FormatError
	if !errors.Is(u.err, io.EOF) && !errors.As(u.err, &broken) {
		return u.abort(req, u.err)
	}
	// The last block is sent even if it is empty: the stages need the format of a WAV
	// without samples.
	if !u.emit(req) {
		return nil
	}
	if broken == nil {
		// The bytes after the samples belong to the request, but not to the answer.
		if _, err := io.Copy(io.Discard, u.body); err != nil {
			return u.abort(req, err)
		}
	}
	_ = req.CloseSend(context.Background()) // fails when the request is over
	if broken != nil {
		return broken
	}
	return nil
}

// emit sends the block, and waits for space until the request is over. It reports
// false when the request is over. A block that the bus refuses ends the request.
func (u *upload) emit(req *bus.Request) bool {
	channels := u.wav.Format().Channels
	shape := []int{u.read / channels, channels}
	err := req.Input(context.Background()).EmitTensor(tensors.DTypeInt16, shape, func(data []byte) error {
		pcm, err := tensors.View[int16](tensors.Tensor{DType: tensors.DTypeInt16, Shape: shape, Data: data})
		if err != nil {
			return err
		}
		copy(pcm, u.block)
		return nil
	}, u.attrs...)
	if err != nil {
		req.Abort(err)
	}
	return err == nil
}

// abort ends the request because of an error of its body, unless the request was
// stopped, or passed its deadline, before.
func (u *upload) abort(req *bus.Request, err error) error {
	switch {
	case errors.Is(err, errStopped):
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		req.Abort(err)
	}
	return err
}

// body reads the body of a request, for as long as the client sends and the
// request is open.
type body struct {
	in   io.Reader
	rc   *http.ResponseController
	idle time.Duration

	mu      sync.Mutex
	until   time.Time // for the client to send more
	stopped error     // why reading was stopped
	ended   error     // why the body ended
}

// Read implements io.Reader. Its errors are problems, io.EOF or the reason of stop.
func (b *body) Read(p []byte) (int, error) {
	if err := b.extend(); err != nil {
		return 0, err
	}
	n, err := b.in.Read(p)
	if err != nil {
		err = b.end(err)
	}
	return n, err
}

// extend sets the deadline of the next read.
func (b *body) extend() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := cmp.Or(b.ended, b.stopped); err != nil {
		return err
	}
	b.until = time.Now().Add(b.idle)
	return b.rc.SetReadDeadline(b.until)
}

// end stores the reason why the body ended.
func (b *body) end(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = b.reason(err)
	return b.ended
}

func (b *body) reason(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, io.EOF):
		// From here on the server reads, without a deadline, to detect that the
		// client hangs up.
		return io.EOF
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	// The server ends the request's context when a read fails. So this error may
	// itself be the reason why the request has ended and called stop.
	case b.stopped != nil && time.Now().Before(b.until):
		return b.stopped
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem{http.StatusRequestTimeout, "idle", fmt.Sprintf("nothing came for %v: send on, or be done", b.idle)}
	default:
		return problem{http.StatusBadRequest, "body", fmt.Sprintf("the body broke off: %v", err)}
	}
}

// stop ends the current read and all later ones, with the first reason given. The
// connection cannot be used after that. If the body has ended, stop leaves the
// connection alone: the server can then close it without losing the answer of a
// client that still sends.
func (b *body) stop(reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped != nil || b.ended != nil {
		return
	}
	b.stopped = reason
	_ = b.rc.SetReadDeadline(time.Unix(1, 0)) // fails when the connection is closed
}
