"""TLS, certificates, and how what ranks hand to other machines is protected."""
