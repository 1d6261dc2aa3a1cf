package main

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"io"
	"net/http"
)

// demonstrate posts three images, one of them three times, and prints the answers.
func demonstrate(url string, stdout io.Writer) error {
	for _, n := range []int{1, 2, 1, 3, 1} {
		img := image.NewGray(image.Rect(0, 0, 640, 480))
		for i := range img.Pix {
			img.Pix[i] = uint8(n * i / 2000) //nolint:gosec // it wraps: n stripes
		}
		var file bytes.Buffer
		if err := png.Encode(&file, img); err != nil {
			return err
		}
		answer, err := http.Post(url, "image/png", &file)
		if err != nil {
			return err
		}
		_, err = io.Copy(stdout, answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			return err
		}
	}
	return nil
}
