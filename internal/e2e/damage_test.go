package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"samovar/internal/block"
	"samovar/internal/dev"
	"samovar/internal/resource"
)

// damages are what a bad day does to the state file of a replica, and what volume info must then say.
func damages() map[string]struct {
	says string
	do   func(path string) error
} {
	change := func(f func([]byte) []byte) func(string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, f(b), 0o600)
		}
	}
	return map[string]struct {
		says string
		do   func(path string) error
	}{
		"missing": {"missing", os.Remove},
		"cut":     {"", change(func(b []byte) []byte { return b[:len(b)/2] })},
		"empty":   {"", change(func([]byte) []byte { return nil })},
		"flipped": {"checksum", change(func(b []byte) []byte { b[len(b)-1] ^= 1; return b })},
		"newer": {"newer", change(func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[8:], 99)
			binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[:12], crc32.MakeTable(crc32.Castagnoli)))
			return b
		})},
	}
}

// Replicas whose files are damaged are shown as such and left as they are; their volumes go on with the other copy, and
// other volumes do not notice.
func TestDamagedReplicas(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	all := []string{"good"}
	for name := range damages() {
		all = append(all, name)
	}
	for _, name := range all {
		r.create(name, 4*mib, "n1", "n2")
		r.mark(name, 1)
	}
	r.stop("n2")
	for name, d := range damages() {
		if err := d.do(filepath.Join(r.replicaDir("n2", name), "state")); err != nil {
			t.Fatal(err)
		}
	}
	r.restart("n2")
	for name, d := range damages() {
		r.damaged(name, "n2", d.says)
		r.marked(name, 1) // the other copy serves
		r.mark(name, 2)
	}
	r.marked("good", 1)
	r.mark("good", 2)
	r.redundant("good")
	r.equal("good")
	// Nothing was made anew: a missing file is still missing.
	if _, err := os.Stat(filepath.Join(r.replicaDir("n2", "missing"), "state")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the missing state file: %v", err)
	}
	out, code := r.samovar("volume", "info", "newer")
	if code != 0 || !strings.Contains(out, "damaged") || !strings.Contains(out, "newer") {
		t.Errorf("volume info ends with %d and says\n%s", code, out)
	}
}

func (r *rig) stop(names ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for _, name := range names {
		if err := r.node(name).Stop(ctx); err != nil {
			r.t.Fatal(err)
		}
	}
}

// replicaDir is where a node keeps its replica of a volume.
func (r *rig) replicaDir(node, name string) string {
	r.t.Helper()
	return filepath.Join(r.node(node).Dir, "pool", "volume-"+r.info(name).ID)
}

// mark writes a number to a volume and flushes it; marked checks it.
func (r *rig) mark(name string, number uint64) {
	r.t.Helper()
	d := r.open(r.t, r.addresses("n1")[0], name)
	defer d.Close()
	write(r.t, d, 0, number)
	if err := <-begin(d, &block.Request{Op: block.Flush}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) marked(name string, number uint64) {
	r.t.Helper()
	d := r.open(r.t, r.addresses("n1")[0], name)
	defer d.Close()
	holds(r.t, d, 0, number)
}

// damaged waits until a replica is shown as damaged, with a cause that contains a word.
func (r *rig) damaged(name, node, word string) {
	r.t.Helper()
	r.until(fmt.Sprintf("the replica of %s on %s is shown as damaged (%s)", name, node, word), patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, name)
		if err != nil {
			return err
		}
		for _, c := range v.Replicas {
			if c.Node == node && c.State == "damaged" && c.Cause != "" && strings.Contains(c.Cause, word) {
				return nil
			}
		}
		return errors.New(indented(v.Replicas))
	})
}

// A pool's disk is not mounted when its node starts: an empty directory. The pool is offline, with words that help,
// nothing is made anew, and other pools and volumes go on. The same for a directory that belongs to another cluster.
func TestPoolDirectories(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 4*mib, "n1", "n3")
	r.create("milk", 4*mib, "n1", "n2")
	r.mark("tea", 1)
	pool := filepath.Join(r.node("n3").Dir, "pool")
	kept := filepath.Join(r.dir, "unmounted")

	r.stop("n3")
	swap(t, pool, kept)
	if err := os.Mkdir(pool, 0o700); err != nil {
		t.Fatal(err)
	}
	r.restart("n3")
	r.offline("pool-n3", pool)
	r.mark("tea", 2)
	r.mark("milk", 2)
	if left, err := os.ReadDir(pool); err != nil || len(left) > 0 {
		t.Errorf("something was made in the empty directory: %v %v", left, err)
	}

	// The disk is mounted: the pool comes back without a restart, and the volume gets what it missed.
	if err := os.Remove(pool); err != nil {
		t.Fatal(err)
	}
	swap(t, kept, pool)
	r.redundant("tea")
	r.marked("tea", 2)
	r.recovered("tea")

	// Another cluster's pool stands in its place.
	r.stop("n3")
	foreign := start(t, dev.Options{Nodes: 1, Pools: true})
	foreign.stop("n1")
	swap(t, pool, kept)
	if err := os.CopyFS(pool, os.DirFS(filepath.Join(foreign.node("n1").Dir, "pool"))); err != nil {
		t.Fatal(err)
	}
	r.restart("n3")
	r.offline("pool-n3", "belongs to cluster")
	r.marked("tea", 2)
	r.mark("milk", 3)
}

func swap(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// offline waits until a pool is shown as offline, with a cause that contains a word.
func (r *rig) offline(name, word string) {
	r.t.Helper()
	r.until("pool "+name+" is offline: "+word, patience, func(ctx context.Context) error {
		p, err := r.api.Pool(ctx, name)
		if err == nil && (p.Online || !strings.Contains(p.Cause, word)) {
			err = fmt.Errorf("online %t, cause %q", p.Online, p.Cause)
		}
		return err
	})
	if out, _ := r.samovar("status"); !strings.Contains(out, name) {
		r.t.Errorf("status does not name the pool:\n%s", out)
	}
}

// Directories of nodes that cannot be used end the daemon with an error that names them.
func TestNodeDirectories(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 1, Pools: true})
	dir := r.Nodes[0].Dir
	config := filepath.Join(dir, "samovar.yaml")
	fails := func(what string, words ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), os.Getenv(binaryVariable), "serve", "--config", config).CombinedOutput()
		if err == nil {
			t.Errorf("%s: the daemon ended without an error", what)
		}
		for _, w := range words {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: the error does not contain %q:\n%s", what, w, out)
			}
		}
	}
	fails("a second daemon", dir, "another samovar uses it")
	r.until("the first one did not notice", patience, func(ctx context.Context) error {
		_, err := r.api.Pools(ctx)
		return err
	})
	r.stop("n1")
	identity := filepath.Join(dir, "node.json")
	good, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(identity, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("nonsense")
	fails("a damaged identity", identity, "damaged")
	put(strings.Replace(string(good), `"version":1`, `"version":2`, 1))
	fails("a newer identity", identity, "newer")
	put(strings.Replace(string(good), `"cluster":"`, `"cluster":"0`, 1))
	fails("a changed identity", identity, "checksum")
	put(string(good))
	away := filepath.Join(r.dir, "store")
	swap(t, filepath.Join(dir, "store"), away)
	fails("a lost member of the store", filepath.Join(dir, "store"))
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	swap(t, away, filepath.Join(dir, "store"))
	r.restart("n1")
	r.healthy()
	if _, err := r.api.CreatePool(t.Context(), resource.NewPool{Node: "n1", Dir: filepath.Join(dir, "pool"), Name: "again"}); err == nil {
		t.Error("a pool was made over another one")
	}
}
