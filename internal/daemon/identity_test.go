package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"samovar/internal/etcd/etcdtest"
	"samovar/internal/fault"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cluster := [16]byte{1, 2, 3}
	if _, ok, err := readIdentity(dir, "n1"); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := writeIdentity(dir, "n1", cluster); err != nil {
		t.Fatal(err)
	}
	got, ok, err := readIdentity(dir, "n1")
	if !ok || err != nil || got != cluster {
		t.Fatal(got, ok, err)
	}
	path := filepath.Join(dir, "node.json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) []byte { return bytes.Replace(good, []byte(old), []byte(new), 1) }
	for what, test := range map[string]struct {
		content []byte
		node    string
		kind    fault.Kind
	}{
		"empty":               {nil, "n1", fault.Corrupt},
		"truncated":           {good[:len(good)/2], "n1", fault.Corrupt},
		"zeroes":              {make([]byte, len(good)), "n1", fault.Corrupt},
		"another file":        {[]byte(`{"format":"other"}`), "n1", fault.Corrupt},
		"twice":               {append(bytes.Clone(good), good...), "n1", fault.Corrupt},
		"another cluster":     {edit("010203", "010204"), "n1", fault.Corrupt},
		"a short cluster":     {edit("010203", "0102"), "n1", fault.Corrupt},
		"no digits":           {edit("010203", "xxxxxx"), "n1", fault.Corrupt},
		"another name inside": {edit(`"n1"`, `"n2"`), "n2", fault.Corrupt},
		"no sum":              {edit(`"sum":`, `"som":`), "n1", fault.Corrupt},
		"a newer version":     {edit(`"version":1`, `"version":2`), "n1", fault.Newer},
		"version zero":        {edit(`"version":1`, `"version":0`), "n1", fault.Corrupt},
		"another node":        {good, "n2", fault.Foreign},
	} {
		if err := os.WriteFile(path, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, ok, err := readIdentity(dir, test.node)
		if ok || !fault.Is(err, test.kind) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
		// Nothing starts on it, and nothing is made anew.
		c := Default()
		c.Node, c.Dir = test.node, dir
		if err := Run(t.Context(), c, "test", slog.New(slog.DiscardHandler)); !fault.Is(err, test.kind) {
			t.Errorf("%s: %v", what, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, test.content) {
			t.Errorf("%s: it was changed", what)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := readIdentity(dir, "n1"); ok || !fault.Is(err, fault.IO) {
		t.Error(err)
	}
	if err := writeIdentity(dir, "n1", cluster); !fault.Is(err, fault.IO) {
		t.Error(err)
	}
}

// freePorts finds ports that nobody uses at the moment.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		out = append(out, ln.Addr().String())
	}
	return out
}

func testConfig(t *testing.T) Config {
	t.Helper()
	at := freePorts(t, 5)
	c := Default()
	c.Node, c.Dir, c.API, c.Data, c.NBD = "n1", t.TempDir(), at[0], at[1], at[2]
	c.Etcd = EtcdConfig{Members: map[string]string{"n1": at[3]}, Clients: map[string]string{"n1": at[4]}}
	return c
}

// notice is a log that tells when a line has come.
type notice struct {
	want string
	seen chan struct{}
	done bool
}

func (n *notice) Write(p []byte) (int, error) { // the handler calls it under its lock
	if !n.done && bytes.Contains(p, []byte(n.want)) {
		n.done = true
		close(n.seen)
	}
	return len(p), nil
}

// A node starts, a second process on its directory is refused and told the way out, it ends, and starts again as it
// was.
func TestTwoOnOneDirectory(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	for range 2 {
		up := &notice{want: "node is up", seen: make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, c, "test", slog.New(slog.NewTextHandler(up, nil))) }()
		select {
		case <-up.seen:
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("it does not start")
		}
		err := Run(t.Context(), c, "test", slog.New(slog.DiscardHandler))
		if !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), c.Dir) || !strings.Contains(err.Error(), "own directory") {
			t.Fatal(err)
		}
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("it does not end")
		}
	}
	if _, ok, err := readIdentity(c.Dir, "n1"); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// Whoever comes first gives the cluster its id; all learn the same one, also when answers are lost.
func TestJoinCluster(t *testing.T) {
	t.Parallel()
	memory := etcdtest.New()
	ids := make(chan [16]byte)
	for _, f := range []etcdtest.Fault{etcdtest.Pass, etcdtest.LostReply, etcdtest.LostRequest, etcdtest.Unavailable} {
		client := memory.Client()
		client.FailNextWrite(f)
		go func() {
			id, err := joinCluster(t.Context(), client, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	first := <-ids
	for range 3 {
		if id := <-ids; id != first || id == [16]byte{} {
			t.Fatal("two ids")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	away := etcdtest.New().Client()
	away.SetReachable(false)
	if _, err := joinCluster(ctx, away, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("joined nothing")
	}
	odd := etcdtest.New().Client()
	for _, value := range []string{"garbage", `{"id":"01"}`, `{"id":"zz"}`} {
		if out := odd.Put(t.Context(), "cluster", []byte(value)); out.Err != nil {
			t.Fatal(out.Err)
		}
		if _, err := joinCluster(t.Context(), odd, slog.New(slog.DiscardHandler)); !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
	}
}

// The socket of an earlier run is replaced; any other file in its place is left alone, and ports that are taken are
// named.
func TestListen(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.Socket = filepath.Join(c.Dir, "nbd.sock")
	d := &daemon{config: c, log: slog.New(slog.DiscardHandler)}
	left, err := net.Listen("unix", c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	l, err := d.listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.listen(); !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), c.API) {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Socket); err != nil {
		t.Fatal("the socket in use was removed")
	}
	for _, ln := range append(l.nbd, l.api, l.data) {
		ln.Close()
	}
	if err := os.WriteFile(c.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.listen(); !fault.Is(err, fault.Exists) || !strings.Contains(err.Error(), c.Socket) {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(c.Socket); err != nil || string(b) != "precious" {
		t.Fatal("a file was lost")
	}
}
