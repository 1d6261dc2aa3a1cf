//go:build !amd64 && !arm64

package lane

func pause() {}
