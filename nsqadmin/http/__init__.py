"""The web server: routes, answers, logins, the API and live updates."""
