package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"samovar/internal/fault"
)

// directory is a member's directory while this process holds it. etcd itself would wait for ever on a directory that
// another process has, starts anew where data was lost, and does not compare tokens once it has data; a member that
// forgot its vote may elect a second leader, so these are refused here.
type directory struct {
	path     string
	lock     *os.File
	identity identity
	once     sync.Once
}

// identity is member.json, version 1.
type identity struct {
	Format  string `json:"format"`  // always "samovar-etcd-member"
	Version int    `json:"version"` // a newer one is refused
	Token   string `json:"token"`
	Name    string `json:"name"`
	// Made is set after the first start: from then on missing data is lost data.
	Made bool `json:"made"`
}

const (
	identityFormat  = "samovar-etcd-member"
	identityVersion = 1
	identityFile    = "member.json"
	lockFile        = "LOCK"
	dataDir         = "etcd"
)

func openDirectory(op string, o MemberOptions) (*directory, error) {
	if o.MustExist {
		if _, err := os.Stat(filepath.Join(o.Dir, identityFile)); err != nil {
			return nil, &fault.Error{Kind: fault.Stale, Op: op, Err: err, Text: "the member ran before, but its directory is " +
				"empty or missing; mount or bring it back, or remove the member from the cluster and add it anew"}
		}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fault.Wrap(fault.IO, op, err)
	}
	d := &directory{path: o.Dir}
	if err := d.acquire(op); err != nil {
		return nil, err
	}
	if err := d.identify(op, o); err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// acquire takes the lock, which ends with the process at the latest.
func (d *directory) acquire(op string) error {
	file, err := os.OpenFile(filepath.Join(d.path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(file.Name())
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fault.New(fault.Busy, op, fmt.Sprintf("%s is in use by %s", d.path, strings.TrimSpace(string(holder))))
		}
		return fault.Wrap(fault.IO, op, err)
	}
	// The name of the holder is for people; nothing depends on it.
	if err := errors.Join(file.Truncate(0), writeAt(file, fmt.Sprintf("process %d\n", os.Getpid()))); err != nil {
		file.Close()
		return fault.Wrap(fault.IO, op, err)
	}
	d.lock = file
	return nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// identify checks that the directory is this member's, or makes it so.
func (d *directory) identify(op string, o MemberOptions) error {
	path := filepath.Join(d.path, identityFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.checkEmpty(op); err != nil {
			return err
		}
		d.identity = identity{Format: identityFormat, Version: identityVersion, Token: o.ClusterToken, Name: o.Name}
		return d.store(op)
	}
	if err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	if err := json.Unmarshal(data, &d.identity); err != nil {
		return fault.Wrap(fault.Corrupt, op, fmt.Errorf("%s: %w", path, err))
	}
	switch id := d.identity; {
	case id.Format != identityFormat:
		return fault.New(fault.Foreign, op, path+" is not a file of this program")
	case id.Version > identityVersion:
		return fault.New(fault.Newer, op, fmt.Sprintf("%s has version %d; this program knows %d", path, id.Version, identityVersion))
	case id.Token != o.ClusterToken:
		return fault.New(fault.Foreign, op, fmt.Sprintf("%s holds a member of cluster %q, not of %q", d.path, id.Token, o.ClusterToken))
	case id.Name != o.Name:
		return fault.New(fault.Foreign, op, fmt.Sprintf("%s holds member %q, not %q", d.path, id.Name, o.Name))
	case id.Made && !d.hasData():
		return fault.New(fault.Stale, op, d.path+" has lost its data: bring it back, or remove the member from the cluster, "+
			"empty the directory and add the member anew")
	}
	return nil
}

// checkEmpty refuses a directory with contents that nobody claims.
func (d *directory) checkEmpty(op string) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	for _, e := range entries {
		if name := e.Name(); name != lockFile && name != "lost+found" && name != identityFile+".new" {
			return fault.New(fault.Foreign, op, fmt.Sprintf("%s holds %s, but no %s: it is not a directory of this program",
				d.path, name, identityFile))
		}
	}
	return nil
}

// hasData looks for a write-ahead log: without one etcd starts anew.
func (d *directory) hasData() bool {
	logs, _ := filepath.Glob(filepath.Join(d.data(), "member", "wal", "*.wal"))
	return len(logs) > 0
}

// markMade notes that the member has data from now on.
func (d *directory) markMade(op string) error {
	if d.identity.Made {
		return nil
	}
	d.identity.Made = true
	return d.store(op)
}

// store replaces member.json so that a crash leaves the old or the new one.
func (d *directory) store(op string) error {
	data, err := json.MarshalIndent(d.identity, "", "  ")
	if err != nil {
		return fault.Wrap(fault.Internal, op, err)
	}
	path := filepath.Join(d.path, identityFile)
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	_, err = file.Write(append(data, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(d.path)
	}
	if err != nil {
		return fault.Wrap(fault.IO, op, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (d *directory) data() string { return filepath.Join(d.path, dataDir) }

// release lets another process have the directory.
func (d *directory) release() { d.once.Do(func() { d.lock.Close() }) }
