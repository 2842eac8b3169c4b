package nbd

import (
	"net"
	"net/url"
	"strings"

	"samovar/internal/fault"
)

// DefaultPort is the port of NBD over TCP.
const DefaultPort = "10809"

// Address is where a server listens.
type Address struct {
	Network string // "tcp" or "unix"
	Address string // host:port, or the socket's path
}

// ParseAddress understands
//
//	nbd://host:port/export                    TCP; the port defaults to 10809
//	nbd+unix:///export?socket=PATH            unix socket
//	unix:PATH, or a path with a slash         unix socket
//	host:port                                 TCP
//
// and returns the export's name, empty where the form has none.
func ParseAddress(text string) (address Address, export string, err error) {
	wrong := func(why string) (Address, string, error) {
		return Address{}, "", fault.New(fault.Invalid, "nbd: address "+text, why)
	}
	switch {
	case strings.Contains(text, "://"):
	case strings.HasPrefix(text, "unix:"):
		return Address{"unix", strings.TrimPrefix(text, "unix:")}, "", nil
	case strings.Contains(text, "/"):
		return Address{"unix", text}, "", nil
	default:
		if _, _, err := net.SplitHostPort(text); err != nil {
			return wrong("want host:port, a socket's path, nbd://host:port/export or nbd+unix:///export?socket=PATH")
		}
		return Address{"tcp", text}, "", nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return wrong(err.Error())
	}
	// One slash separates the authority from the name; further ones belong to the name.
	export = strings.TrimPrefix(u.Path, "/")
	switch u.Scheme {
	case "nbd":
		port := u.Port()
		if port == "" {
			port = DefaultPort
		}
		if u.Hostname() == "" {
			return wrong("the host is missing")
		}
		return Address{"tcp", net.JoinHostPort(u.Hostname(), port)}, export, nil
	case "nbd+unix":
		path := u.Query().Get("socket")
		if path == "" {
			return wrong("the parameter socket=PATH is missing")
		}
		if u.Host != "" {
			return wrong("a unix socket has no host: write nbd+unix:/// with three slashes")
		}
		return Address{"unix", path}, export, nil
	case "nbds", "nbds+unix":
		return wrong("TLS is not supported")
	}
	return wrong("unknown scheme " + u.Scheme)
}
