package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
)

// TestRefusedWhileSending: a client that sends its whole body before it reads gets its answer,
// although the body is larger than the buffers of the sockets.
func TestRefusedWhileSending(t *testing.T) {
	s := serve(t, nil)
	long := make([]byte, 32<<20)
	endless := append([]byte("RIFF\xff\xff\xff\xffWAVELIST\x00\x00\x00\x02"), long...)
	for name, c := range map[string]struct {
		path, framing string
		body          []byte
		status        int
		code, says    string
	}{
		"length says it": {"/v1/transcode", "length", long, 413, "too_large", "8388608"},
		"last request":   {"/v1/transcode", "closing", long, 413, "too_large", "8388608"},
		"found out":      {"/v1/transcode", "chunked", endless, 413, "too_large", "8388608"},
		"no WAV":         {"/v1/transcode", "chunked", long, 400, "bad_wav", "begins with"},
		"query":          {"/v1/transcode?quality=fine", "chunked", long, 400, "query", "quality"},
		"path":           {"/v1/transcribe", "length", long, 404, "not_found", "/v1/transcribe"},
		"method":         {"/healthz", "chunked", long, 405, "method", "GET"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			framing, body := fmt.Sprintf("Content-Length: %d", len(c.body)), c.body
			switch c.framing {
			case "closing":
				framing += "\r\nConnection: close"
			case "chunked":
				framing = "Transfer-Encoding: chunked"
				body = slices.Concat(fmt.Appendf(nil, "%x\r\n", len(c.body)), c.body, []byte("\r\n0\r\n\r\n"))
			}
			head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gateway\r\n%s\r\n\r\n", c.path, framing)
			if _, err := conn.Write(append([]byte(head), body...)); err != nil {
				t.Fatalf("while sending: %v", err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			checkProblem(t, res, c.status, c.code, c.says)
			if !res.Close {
				t.Error("the connection is kept for another request")
			}
		})
	}
}
