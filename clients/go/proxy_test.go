package lease_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between a client and the server, and may forget what it carries.
type proxy struct {
	net.Listener
	to      string
	mu      sync.Mutex
	forgets bool // drops what comes from the server, and accepts no connection
	conns   []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener, to: to}
	t.Cleanup(func() { p.Close(); p.cut() })
	go func() {
		for {
			client, err := p.Accept()
			if err != nil {
				return
			}
			go p.carry(client)
		}
	}()
	return p
}

func (p *proxy) carry(client net.Conn) {
	for p.forgetting() {
		time.Sleep(10 * time.Millisecond)
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		client.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			client.Close()
			return
		}
		if !p.forgetting() {
			client.Write(buffer[:n])
		}
	}
}

func (p *proxy) forgetting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forgets
}

func (p *proxy) forget(does bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgets = does
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}
