package disk_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// The suite for disk.FS: what the store relies on, on every implementation.
func TestFileSystems(t *testing.T) {
	tests := map[string]func(*testing.T, disk.FS, string){
		"names": checkNames, "bytes": checkBytes, "space": checkSpace, "locks": checkLocks, "direct": checkDirect,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Run("native", func(t *testing.T) { test(t, disk.Native{}, t.TempDir()) })
			t.Run("tmpfs", func(t *testing.T) {
				dir, err := os.MkdirTemp("/dev/shm", "disk")
				if err != nil {
					t.Skip(err)
				}
				defer os.RemoveAll(dir)
				test(t, disk.Native{}, dir)
			})
			t.Run("memory", func(t *testing.T) { test(t, memory.New(1, memory.Options{}), "/") })
			t.Run("memory-direct", func(t *testing.T) {
				test(t, memory.New(1, memory.Options{Direct: disk.Limits{Direct: true, Offset: 4096, Memory: 512}}), "/")
			})
		})
	}
}

func checkNames(t *testing.T, fsys disk.FS, dir string) {
	_, err := fsys.Open(dir+"/a", 0)
	wantError(t, err, fs.ErrNotExist)
	_, err = fsys.Stat(dir + "/a")
	wantError(t, err, fs.ErrNotExist)
	wantError(t, fsys.Remove(dir+"/a"), fs.ErrNotExist)
	wantError(t, fsys.Rename(dir+"/a", dir+"/b"), fs.ErrNotExist)
	a, err := fsys.Open(dir+"/a", disk.Create|disk.Exclusive)
	must(t, err)
	_, err = fsys.Open(dir+"/a", disk.Create|disk.Exclusive)
	wantError(t, err, fs.ErrExist)
	must(t, a.WriteAt([]byte("one"), 0, false))
	must(t, fsys.Mkdir(dir+"/z"))
	wantError(t, fsys.Mkdir(dir+"/z"), fs.ErrExist)
	b, err := fsys.Open(dir+"/b", disk.Create)
	must(t, err)
	must(t, b.Close())
	must(t, fsys.Rename(dir+"/a", dir+"/b"))
	must(t, fsys.SyncDir(dir))
	got := make([]byte, 3)
	must(t, a.ReadAt(got, 0)) // an open file keeps its bytes under its new name
	entries, err := fsys.ReadDir(dir)
	must(t, err)
	if len(entries) != 2 || entries[0] != (disk.Entry{Name: "b"}) || entries[1] != (disk.Entry{Name: "z", Dir: true}) {
		t.Fatalf("entries %v", entries)
	}
	info, err := fsys.Stat(dir + "/b")
	must(t, err)
	if info.Dir || info.Size != 3 {
		t.Fatalf("info %+v", info)
	}
	must(t, a.Close())
	c, err := fsys.Open(dir+"/b", disk.Create|disk.Truncate)
	must(t, err)
	if info, err := c.Info(); err != nil || info.Size != 0 {
		t.Fatalf("info %+v, %v", info, err)
	}
	must(t, c.Close())
	must(t, fsys.Rename(dir+"/z", dir+"/y"))
	must(t, fsys.Remove(dir+"/y"))
	must(t, fsys.Remove(dir+"/b"))
	_, err = fsys.ReadDir(dir + "/y")
	wantError(t, err, fs.ErrNotExist)
}

func checkBytes(t *testing.T, fsys disk.FS, dir string) {
	f, err := fsys.Open(dir+"/f", disk.Create)
	must(t, err)
	defer f.Close()
	got := make([]byte, 10)
	wantError(t, f.ReadAt(got, 0), io.EOF)
	must(t, f.WriteAt([]byte("hello"), 3, true))
	wantError(t, f.ReadAt(got, 0), io.ErrUnexpectedEOF)
	must(t, f.WriteVector([][]byte{[]byte("ab"), []byte("cd"), []byte("efgh")}, 4))
	got = make([]byte, 12)
	must(t, f.ReadAt(got, 0))
	if string(got) != "\x00\x00\x00habcdefgh" {
		t.Fatalf("read %q", got)
	}
	must(t, f.SetSize(6))
	must(t, f.SetSize(1<<20))
	must(t, f.ReadAt(got, 0))
	if string(got) != "\x00\x00\x00hab\x00\x00\x00\x00\x00\x00" {
		t.Fatalf("read %q", got)
	}
	must(t, f.Sync())
	many := make([][]byte, 3000) // more than one call takes
	for i := range many {
		many[i] = []byte{byte(i), byte(i >> 8)}
	}
	must(t, f.WriteVector(many, 1000))
	got = make([]byte, 6000)
	must(t, f.ReadAt(got, 1000))
	if !bytes.Equal(got, bytes.Join(many, nil)) {
		t.Fatal("the vector differs")
	}
}

func checkSpace(t *testing.T, fsys disk.FS, dir string) {
	f, err := fsys.Open(dir+"/f", disk.Create)
	must(t, err)
	defer f.Close()
	must(t, f.SetSize(1<<20))
	data := bytes.Repeat([]byte{7}, 64<<10)
	must(t, f.WriteAt(data, 256<<10, false))
	seek := func(from, data, hole int64) {
		t.Helper()
		d, err := f.SeekData(from)
		must(t, err)
		h, err := f.SeekHole(from)
		must(t, err)
		if d != data || h != hole {
			t.Fatalf("from %d: data at %d, hole at %d; want %d, %d", from, d, h, data, hole)
		}
	}
	seek(0, 256<<10, 0)
	seek(256<<10, 256<<10, 320<<10)
	seek(320<<10, 1<<20, 320<<10)
	must(t, f.Allocate(512<<10, 64<<10))
	must(t, f.PunchHole(256<<10, 32<<10))
	seek(0, 288<<10, 0)
	got := make([]byte, 64<<10)
	must(t, f.ReadAt(got, 256<<10))
	if !bytes.Equal(got[:32<<10], make([]byte, 32<<10)) || !bytes.Equal(got[32<<10:], data[32<<10:]) {
		t.Fatal("a punch took other bytes than its own")
	}
	switch err := f.ZeroRange(288<<10, 16<<10); {
	case errors.Is(err, errors.ErrUnsupported): // nothing was done
		must(t, f.ReadAt(got, 288<<10))
		if !bytes.Equal(got[:32<<10], data[:32<<10]) {
			t.Fatal("a refused ZeroRange changed something")
		}
	default:
		must(t, err)
		must(t, f.ReadAt(got, 288<<10))
		if !bytes.Equal(got[:16<<10], make([]byte, 16<<10)) || got[16<<10] != 7 {
			t.Fatal("ZeroRange took other bytes than its own")
		}
	}
	info, err := f.Info()
	must(t, err)
	if info.Size != 1<<20 || info.Allocated < 96<<10 || info.Allocated > 112<<10 {
		t.Fatalf("info %+v", info)
	}
	space, err := fsys.Space(dir)
	must(t, err)
	if space.Total < space.Free || space.Free <= 0 || space.BlockSize <= 0 || space.Kind == "" {
		t.Fatalf("space %+v", space)
	}
}

func checkLocks(t *testing.T, fsys disk.FS, dir string) {
	lock, err := fsys.Lock(dir+"/lock", "process 1234567")
	must(t, err)
	var locked *disk.LockedError
	if _, err := fsys.Lock(dir+"/lock", "me"); !errors.As(err, &locked) || locked.Holder != "process 1234567" {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(locked.Error(), "1234567") {
		t.Fatal(locked)
	}
	must(t, lock.Close())
	lock, err = fsys.Lock(dir+"/lock", "me")
	must(t, err)
	if _, err := fsys.Lock(dir+"/lock", "you"); !errors.As(err, &locked) || locked.Holder != "me" {
		t.Fatalf("%v", err)
	}
	must(t, lock.Close())
}

func checkDirect(t *testing.T, fsys disk.FS, dir string) {
	f, err := fsys.Open(dir+"/f", disk.Create|disk.Direct)
	if errors.Is(err, disk.ErrNoDirect) {
		t.Skip(err)
	}
	must(t, err)
	defer f.Close()
	limits := f.Limits()
	if !limits.Direct || limits.Offset < 1 || limits.Offset > 64<<10 || limits.Memory < 1 {
		t.Fatalf("limits %+v", limits)
	}
	plain, err := fsys.Open(dir+"/f", 0)
	must(t, err)
	defer plain.Close()
	if plain.Limits() != (disk.Limits{Offset: 1, Memory: 1}) {
		t.Fatalf("limits %+v", plain.Limits())
	}
}
