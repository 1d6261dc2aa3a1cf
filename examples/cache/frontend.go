package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	_ "image/jpeg" // for image.Decode
	_ "image/png"
	"io"
	"log"
	"maps"
	"net/http"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

const channels = 4 // bytes of a pixel: red, green, blue, alpha

var errImage = errors.New("send a PNG or a JPEG")

// frontEnd answers requests over HTTP.
type frontEnd struct {
	store   *keyed.Store
	putting sync.Mutex // so that no request finds a key whose pixels another request is still writing
	largest int64      // bytes of an image
	bus     *bus.Bus   // its stages are the workers
}

// post answers POST /images.
func (f *frontEnd) post(w http.ResponseWriter, r *http.Request) {
	answer, err := f.look(r.Context(), http.MaxBytesReader(w, r.Body, f.largest))
	if err != nil {
		log.Print(err)
		http.Error(w, err.Error(), status(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // fails if the client has closed the connection
}

func (f *frontEnd) look(ctx context.Context, body io.Reader) (map[string]any, error) {
	file, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read the image: %w", err)
	}
	key := fmt.Sprintf("%x", sha256.Sum256(file))
	handle, cached, err := f.put(key, file)
	if err != nil {
		return nil, err
	}
	answer, err := f.ask(context.WithoutCancel(ctx), handle)
	if err != nil {
		return nil, err
	}
	answer["key"], answer["cached"] = key, cached
	return answer, nil
}

// status classifies an error. Errors of the store and of the workers are temporary: a full store has space again when
// the workers have read, and a worker that has died is started again.
func status(err error) int {
	switch tooLong := (*http.MaxBytesError)(nil); {
	case errors.As(err, &tooLong), errors.Is(err, shmstore.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errImage):
		return http.StatusBadRequest
	default:
		return http.StatusServiceUnavailable
	}
}

// put returns the handle of the image's pixels. Each worker is charged for it, and must get it once.
func (f *frontEnd) put(key string, file []byte) (h shmstore.Handle, cached bool, err error) {
	if h, err = f.store.GetCached(key); err == nil {
		return h, true, nil
	}
	pixels, err := decode(file, f.largest)
	if err != nil {
		return h, false, err
	}
	f.putting.Lock()
	defer f.putting.Unlock()
	h, err = f.store.Put(key, pixels)
	if errors.Is(err, keyed.ErrExists) { // another request has put the image meanwhile
		h, err = f.store.GetCached(key)
		return h, true, err
	}
	return h, false, err
}

// decode returns the pixels as a tensor of rows, columns and channels.
func decode(file []byte, largest int64) (codec.Tensor, error) {
	c, _, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return codec.Tensor{}, fmt.Errorf("%w: %w", errImage, err)
	}
	if int64(c.Width)*int64(c.Height) > largest/channels { // before memory is allocated for the pixels
		return codec.Tensor{}, fmt.Errorf("%w: %dx%d pixels", shmstore.ErrTooLarge, c.Width, c.Height)
	}
	img, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return codec.Tensor{}, fmt.Errorf("%w: %w", errImage, err)
	}
	rgba := image.NewRGBA(image.Rect(0, 0, c.Width, c.Height))
	draw.Draw(rgba, rgba.Rect, img, img.Bounds().Min, draw.Src)
	return codec.Tensor{DType: codec.DTypeUint8, Shape: []int{c.Height, c.Width, channels}, Data: rgba.Pix}, nil
}

// ask sends the handle to both workers, and returns their results. The context must not end before they answer, and a
// worker reports a failure in its answer: if the request ended early, the other worker might not get the handle that it
// is charged for, and the pixels would stay in the store.
func (f *frontEnd) ask(ctx context.Context, h shmstore.Handle) (map[string]any, error) {
	r, err := f.bus.Submit(ctx, h)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	answer := make(map[string]any)
	for d, err := range r.Results(ctx) {
		if err != nil {
			return nil, err
		}
		found, err := bus.Result[map[string]any](d)
		if err != nil {
			return nil, err
		}
		maps.Copy(answer, found)
	}
	if failure, ok := answer["error"]; ok {
		return nil, fmt.Errorf("a worker could not read the image, try again: %v", failure)
	}
	return answer, nil
}
