package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is the gateway's process, which is this test binary.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
	url    string
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot send a signal to one process")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	p := &program{t: t, cmd: exec.CommandContext(ctx, self, append([]string{"-listen", "127.0.0.1:0"}, args...)...)}
	p.cmd.Env = append(os.Environ(), playMain+"=1")
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = p.cmd.Wait() // fails unless the test ended before wait
	})
	p.stdout = bufio.NewReader(stdout)
	p.url = strings.TrimPrefix(p.line(), "listening on ")
	return p
}

func (p *program) line() string {
	p.t.Helper()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read standard output: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait reads the output, so that the program is not blocked, and waits for its end.
func (p *program) wait() *exec.ExitError {
	p.t.Helper()
	_, _ = io.Copy(io.Discard, p.stdout)
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return exit
}

// converse begins a request on a connection of its own and waits for the answer
// to begin.
func (p *program) converse(whole []byte) *exchange {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, w := io.Pipe()
	p.t.Cleanup(func() { w.CloseWithError(errors.New("the test is over")) })
	go func() { _, _ = w.Write(whole[:headerBytes+blockBytes]) }()
	res, err := client.Post(p.url+"/v1/transcode?quality=0", "audio/wav", r)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { res.Body.Close() })
	return &exchange{t: p.t, in: w, res: res}
}

// TestDrain: after a signal new connections are refused, and running requests
// complete.
func TestDrain(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			p := start(t)
			whole := openWAV(t, mono, sweep(3*blockBytes))
			x := p.converse(whole)
			p.signal(signal)
			if got := p.line(); got != "draining" {
				t.Errorf("it says %q", got)
			}
			p.checkClosed()
			go func() {
				_, _ = x.in.Write(whole[headerBytes+blockBytes:])
				x.in.Close()
			}()
			if out, err := io.ReadAll(x.res.Body); err != nil || !bytes.Equal(out, whole) {
				t.Errorf("the answer has %d bytes, %v", len(out), err)
			}
			if exit := p.wait(); exit != nil {
				t.Errorf("it ended with %v: %s", exit, &p.stderr)
			}
		})
	}
}

// checkClosed waits until connections are refused.
func (p *program) checkClosed() {
	p.t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	for end := time.Now().Add(hangs); time.Now().Before(end); {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			return
		}
		conn.Close()
	}
	p.t.Error("it still accepts connections")
}

// TestGraceEnds: requests that outlast the grace time are cut off, and the program reports it.
func TestGraceEnds(t *testing.T) {
	p := start(t, "-grace", "1ms")
	x := p.converse(openWAV(t, mono, sweep(3*blockBytes)))
	p.signal(syscall.SIGTERM)
	x.checkBreaksOff()
	if exit := p.wait(); exit == nil || exit.ExitCode() != 1 || !strings.Contains(p.stderr.String(), "requests were cut off that still ran after 1ms") {
		t.Errorf("it ended with %v: %s", exit, &p.stderr)
	}
}

// TestSecondSignal: a second signal ends the program at once.
func TestSecondSignal(t *testing.T) {
	p := start(t)
	x := p.converse(openWAV(t, mono, sweep(3*blockBytes)))
	p.signal(syscall.SIGTERM)
	if got := p.line(); got != "draining" {
		t.Errorf("it says %q", got)
	}
	p.signal(syscall.SIGTERM)
	if exit := p.wait(); exit == nil || exit.ExitCode() != -1 || !strings.Contains(exit.String(), "terminated") {
		t.Errorf("it ended with %v: %s", exit, &p.stderr)
	}
	x.checkBreaksOff()
}

func TestCommandLine(t *testing.T) {
	for args, says := range map[string]string{
		"-requests=0":       "-requests is 0",
		"-max-bytes=-1":     "-max-bytes is -1",
		"-idle=0s":          "-idle 0s",
		"-timeout=soon":     "soon",
		"extra":             "not [\"extra\"]",
		"-listen=nowhere:x": "unknown port",
	} {
		t.Run(args, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, args)
			cmd.Env = append(os.Environ(), playMain+"=1")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			want := 2
			if strings.HasPrefix(args, "-listen") {
				want = 1
			}
			if !errors.As(err, &exit) || exit.ExitCode() != want || !strings.Contains(string(out), says) {
				t.Errorf("it ended with %v: %s", err, out)
			}
		})
	}
}
